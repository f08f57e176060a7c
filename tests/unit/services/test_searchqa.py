"""SearchQA over files of the user: answers, questions, an episode, and the server with a client."""

import json

import pytest
from refusing import refusal

from agentrl_jax.retrieval.controls import Empty, Oracle
from agentrl_jax.retrieval.corpus import Corpus
from agentrl_jax.services.client import ServiceClient
from agentrl_jax.services.environment import ItemError
from agentrl_jax.services.environments.searchqa.answers import answer_in, is_right, normalized
from agentrl_jax.services.environments.searchqa.env import Game, SearchQa, searchqa_service, service_of
from agentrl_jax.services.environments.searchqa.questions import Question, read_questions
from agentrl_jax.services.protocol import routes_of

CORPUS = Corpus.of([("Emma", "Emma is by Jane Austen."), ("Ulysses", "Ulysses is set in Dublin.")])
QUESTIONS = (
    Question("who wrote Emma?", ("Jane Austen",), (0,), "nq"),
    Question("where?", ("The Dublin", "Eire"), (1, 0)),
)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("The  Cat-and a dog!", "catand dog"),
        ("An apple’s a day", "apple’s day"),  # punctuation that is not ASCII stays, and ends words
        ("l’a b", "l’ b"),
        ("the a, an", ""),
        ("A.B. (1999)", "ab 1999"),
        ("ΑΣ", "ας"),
    ],
)
def test_answers_are_compared_as_in_squad(given, left):
    assert normalized(given) == left


def test_the_last_answer_counts_and_nothing_is_never_right():
    assert answer_in("<answer>a</answer> <answer>\n b </answer><answer>c") == "b"
    assert answer_in("<answer>a") is None
    assert is_right("The dublin.", ("Eire", "Dublin"))
    assert not is_right("the", ("The",))
    assert not is_right("Dublin city", ("Dublin",))


def episode(*, retries=False, retriever=None, item=0):
    env = SearchQa(Game(CORPUS, retriever or Oracle(CORPUS), QUESTIONS), retries=retries)
    return env, env.reset(item)


def test_the_first_tags_decide_and_a_search_shows_passages():
    env, first = episode(item=1)
    assert first.observation.endswith("\n\n Question: where?")
    found = env.step("<think>hm</think><search> books </search><answer>Dublin</answer>")
    assert (found.reward, found.done) == (0.0, False)
    assert found.observation == (
        '<information>Doc 1(Title: "Ulysses") Ulysses is set in Dublin.\n'
        'Doc 2(Title: "Emma") Emma is by Jane Austen.</information>'
    )
    hints = {env.step(action).observation for action in ("", "Dublin", "<answer>Dublin", "</search>x<search>")}
    assert len(hints) == 1
    assert "<information>" not in hints.pop()
    right = env.step("<answer>no</answer> or <answer>dublin</answer>")
    assert (right.reward, right.score, right.done) == (1.0, 1.0, True)
    assert episode(retriever=Empty())[0].step("<search>x</search>").observation == "<information></information>"


@pytest.mark.parametrize("retries", [False, True])
def test_a_wrong_answer_ends_an_episode_unless_the_agent_may_retry(retries):
    env, _ = episode(retries=retries)
    wrong = env.step("<answer>Joyce</answer>")
    assert (wrong.reward, wrong.done) == (0.0, not retries)
    assert env.step("<answer>Jane Austen</answer>").reward == 1.0


def test_observations_do_not_depend_on_the_right_answer():
    other = Question(QUESTIONS[0].text, ("somebody else",), (0,))
    shown = []
    for question in (QUESTIONS[0], other):
        env = SearchQa(Game(CORPUS, Oracle(CORPUS), [question]), retries=True)
        actions = ("<search>Emma</search>", "no tags", "<answer>nobody</answer>")
        shown.append([env.reset(0).observation, *(env.step(action).observation for action in actions)])
    assert shown[0] == shown[1]


def test_scripted_policies_and_what_the_service_says():
    service = service_of(Game(CORPUS, Oracle(CORPUS), QUESTIONS))
    assert (service.items, service.content(1), service.category(0)) == (2, "where?", "nq")
    for item in (0, 1):
        env, policy = service.make(False), service.oracle(item)
        answer = env.reset(item)
        while not answer.done:
            answer = env.step(policy.act(answer.observation))
        assert service.solved(answer)
    assert service.random(0, 3).act("").startswith("<search>")
    with pytest.raises(ItemError):
        service.make(False).reset(2)


def test_a_client_plays_what_is_served(serve):
    service, routes = service_of(Game(CORPUS, Oracle(CORPUS), QUESTIONS)), routes_of("searchqa")
    client = ServiceClient(serve(service, routes), routes, seconds=5)
    instance = client.create()
    assert client.reset(instance, 1).observation.endswith("Question: where?")
    assert "Dublin" in client.step(instance, "<search>x</search>").observation
    assert client.step(instance, "<answer>Eire</answer>").done


ROW = {"question": " where\n to ", "golden_answers": ["A", "Eire", "Eire"], "evidence": ["u"], "id": "q1"}


def rows(tmp_path, *found):
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in found))
    return file


def test_questions_are_read(tmp_path):
    file = rows(tmp_path, ROW, {"question": "who?", "golden_answers": "Emma", "data_source": "nq"})
    found = read_questions(file, {"u": 4})
    assert found == [Question("where to?", ("Eire",), (4,)), Question("who?", ("Emma",), (), "nq")]


@pytest.mark.parametrize(
    "change",
    [
        {"question": ""},
        {"question": 3},
        {"golden_answers": []},
        {"golden_answers": ["the", "..."]},
        {"golden_answers": [1]},
        {"evidence": ["v"]},
        {"evidence": "u"},
        {"data_source": 1},
        {"weight": 2},
        {"golden_answers": ["\ud800"]},
    ],
)
def test_rows_that_are_no_questions_are_named(tmp_path, change):
    file = rows(tmp_path, ROW, ROW | change)
    assert refusal(read_questions, file, {"u": 0}).key == f"{file}:2"


def test_files_that_are_missing_or_empty_are_named(tmp_path):
    file = rows(tmp_path)
    assert refusal(read_questions, file, {}).key == str(file)
    assert refusal(read_questions, tmp_path / "no.jsonl", {}).key == str(tmp_path / "no.jsonl")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "u", "title": "U", "text": "v"}\n')
    assert searchqa_service(corpus, rows(tmp_path, ROW), retriever="oracle").items == 1
