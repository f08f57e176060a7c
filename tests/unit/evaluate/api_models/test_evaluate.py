"""API models as agents: scores, lines, stops that are no failures, and resuming after a kill."""

import json
import re
import threading
from types import SimpleNamespace

import pytest
from fake_api import FakeApi, completion
from maze_model import STAY, at, command, ended, maze, played, replies_in, walk
from refusing import refusal

from agentrl_jax.evaluate.api_models import client as clients
from agentrl_jax.evaluate.api_models import play
from agentrl_jax.evaluate.api_models.evaluate import evaluate_api
from agentrl_jax.evaluate.api_models.journal import Journal
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.services.environments.maze.env import SERVICE


def test_a_model_that_walks_like_the_oracle(tmp_path):
    """Every second request fails first; the result and its lines are those of scripted policies on the same items."""
    faults = ["drop", (429, {"Retry-After": "0"}, {}), (500, {}, b"oops"), "cut", "garbage", "reset"] * 2
    options = maze("4,9,13-15", turns=30, concurrency=4)
    result, api = played(walk, tmp_path, options, faults=faults, price_in=2.0, price_out=10.0)
    assert result["success_answered"]["mean"] == result["success_all"]["mean"] == result["optimal"]["mean"] == 1
    assert ended(result) == (5, 5, 0, 0, 0, 0)
    for name, policy in (("random", "random"), ("null", "null"), ("optimal", "oracle")):
        assert result[name] == evaluate_scripted("maze", policy, items=options.items, turns=30)["success"]
    assert result["gap_closed_all"] == result["gap_closed_answered"] == 1
    moves = len(replies_in(tmp_path))
    assert result["turns_used"] == moves / 5
    assert result["tokens"]["prompt_tokens"] == 100 * moves
    assert result["cost"] == pytest.approx(moves * (100 * 2.0 + 10 * 10.0) / 1e6)
    assert (result["requests"], result["retried"]) == (moves + 12, 12)
    assert api.most_at_once <= 4
    assert json.loads((tmp_path / "summary.json").read_text()) == result


def test_what_the_model_reads(tmp_path):
    first, second = played(walk, tmp_path, maze("17"), temperature=0.5)[1].requests
    instruction, start = first["messages"]
    assert instruction == {"role": "system", "content": SERVICE.instruction}
    assert start["content"].startswith("The goal is at position 8, 6.")
    assert second["messages"][:3] == [instruction, start, {"role": "assistant", "content": walk(first)}]
    assert len(second["messages"]) == 4
    assert (first["temperature"], first["max_tokens"], "seed" in first) == (0.5, 512, False)
    rows = replies_in(tmp_path)
    assert rows[17, 0, 0]["added"] == first["messages"]
    assert rows[17, 0, 1]["added"] == second["messages"][-1:]


def test_cut_and_withheld_replies_are_no_failures(tmp_path):
    def answer(body):
        if at(16, body, 1):
            return completion(walk(body), "length", reasoning_content="a long thought")
        return completion(None, refusal="I must not walk.") if at(18, body, 1) else walk(body)

    result, _ = played(answer, tmp_path / "a", maze("16-18"))
    assert ended(result) == (3, 1, 1, 1, 0, 0)
    rates = [result[name] for name in ("success_answered", "success_all", "score_answered")]
    assert [(rate["mean"], rate["n"]) for rate in rates] == [(1, 1), (pytest.approx(1 / 3), 3), (1, 1)]
    nothing, _ = played(lambda body: completion("", "length"), tmp_path / "b", maze("17"))
    assert nothing["success_answered"] is nothing["score_answered"] is nothing["gap_closed_answered"] is None
    assert nothing["success_all"]["mean"] == 0
    rows = replies_in(tmp_path / "a")
    assert rows[16, 0, 0]["reply"]["reasoning"] == "a long thought"
    assert rows[18, 0, 0]["reply"]["refusal"] == "I must not walk."


def test_an_action_that_is_refused_takes_a_turn(tmp_path):
    def answer(body):
        return "Action: inventory\nAction: inventory" if len(body["messages"]) == 2 else "Action: inventory"

    result, api = played(answer, tmp_path, TaskOptions(env="textcraft", items="3", turns=3))
    _, second, third = (body["messages"][-1]["content"] for body in api.requests)
    assert second.startswith("Error: Only one 'Action' is allowed per response.")
    assert third == "Inventory: You are not carrying anything."
    assert (result["turns_used"], result["success_all"]["mean"]) == (3.0, 0.0)
    assert list(result["categories"]) == ["depth 1"]


def test_more_items_and_samples_ask_only_for_what_is_missing(tmp_path):
    api = FakeApi(walk)
    with api.running() as url:
        for items, samples, asked in (("18", 1, 1), ("18", 2, 1), ("17,18", 2, 4), ("18", 2, 0)):
            result = evaluate_api("m", url, maze(items), tmp_path, samples=samples)
            assert (result["requests"], result["episodes"]["asked"]) == (asked, samples * len(items.split(",")))


def test_an_episode_without_a_reply_is_unfinished_and_asked_again(tmp_path):
    broken = True

    def answer(body):
        return (500, {}, {"error": "oops"}) if broken and at(17, body) else walk(body)

    options = maze("16,18")
    with FakeApi(answer).running() as url:
        result = evaluate_api("m", url, options, tmp_path, retries=1)
        assert ended(result) == (2, 1, 0, 0, 0, 1)
        assert "status 500: oops; given up after 2 attempts" in result["unfinished"]["item 16, sample 0"]
        assert (result["success_all"]["mean"], result["success_all"]["n"]) == (1.0, 1)
        for name in ("replies.jsonl", "episodes.jsonl"):
            with open(tmp_path / name, "ab") as file:
                file.write(b'{"item": 7, "sam')  # as a kill leaves it
        broken = False
        result = evaluate_api("m", url, options, tmp_path)
    assert (result["episodes"]["answered"], result["success_all"]["mean"]) == (2, 1.0)
    assert result["requests"] == 2, "the first move was answered before"


REFUSED = (400, {}, {"error": {"message": "flagged"}})


def test_refused_conversations_fail_and_are_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(play, "FAILURES_IN_A_ROW", 3)
    refused = range(10, 17)
    api = FakeApi(lambda body: REFUSED if any(at(item, body, 1) for item in refused) else walk(body))
    with api.running() as url:
        options = maze("9-18", concurrency=2)
        result = evaluate_api("m", url, options, tmp_path)
        assert ended(result) == (10, 3, 0, 0, 7, 0)
        assert result["success_all"]["mean"] == pytest.approx(0.3)
        assert "flagged" in result["unfinished"]["item 12, sample 0"]
        again = evaluate_api("m", url, options, tmp_path)
        asked = len(refused) * (1 + clients.REFUSED_RETRIES)
        assert again["requests"] == asked, "the model has replied before, so that no option is wrong"
        assert ended(again) == (10, 3, 0, 0, 7, 0)
        refused = ()
        assert evaluate_api("m", url, options, tmp_path)["episodes"]["answered"] == 10


@pytest.mark.parametrize(("answer", "key"), [((503, {}, {}), "unfinished"), (REFUSED, "failed")])
def test_a_server_that_answers_nothing_is_not_asked_for_every_item(tmp_path, monkeypatch, answer, key):
    monkeypatch.setattr(play, "FAILURES_IN_A_ROW", 3)
    result, api = played(lambda body: answer, tmp_path, maze("0-24", concurrency=1), retries=1)
    episodes = result["episodes"]
    assert episodes["failed"] + episodes["unfinished"] == episodes["asked"] == len(result["unfinished"]) == 25
    assert 3 <= episodes["failed"] <= 4 if key == "failed" else episodes["failed"] == 0
    assert result["unfinished"]["item 24, sample 0"] == "not played, after 3 episodes in a row without a reply"
    assert len(api.requests) <= 2 * 4
    assert (result["success_all"] is None) == (key == "unfinished")


def test_a_refusal_in_a_retry_leaves_the_first_attempt(tmp_path):
    refuse = True

    def answer(body):
        return REFUSED if refuse and len(body["messages"]) > 4 else STAY

    options = maze("17,18", turns=1, attempts=3)
    with FakeApi(answer).running() as url:
        result = evaluate_api("m", url, options, tmp_path)
        assert (result["episodes"]["answered"], len(result["unfinished"])) == (2, 2)
        within = result["retry"]["attempts"]["3"]
        assert (within["retry_all"]["mean"], within["retry_tokens"]["mean"]) == (0, 20)
        refuse = False
        again = evaluate_api("m", url, options, tmp_path)
        assert (again["requests"], again["unfinished"]) == (2, {})
        assert evaluate_api("m", url, options, tmp_path)["requests"] == 0


def test_an_empty_reply_is_a_turn(tmp_path):
    """Every second conversation begins with a reply that is a thought alone; the server refuses empty messages."""

    def answer(body):
        said = [message["content"] for message in body["messages"] if message["role"] == "assistant"]
        if not all(text.strip() for text in said):
            return 400, {}, {"error": {"message": "Assistant message must contain either 'content' or 'tool_calls'!"}}
        return completion(" \n", reasoning_content="hm") if at(17, body, 1) and not said else walk(body)

    result, api = played(answer, tmp_path, maze("17,18", concurrency=1))
    assert (result["episodes"]["answered"], result["success_all"]["mean"], result["unfinished"]) == (2, 1.0, {})
    rows = replies_in(tmp_path)
    assert rows[17, 0, 0]["reply"]["text"] == " \n"
    assert api.requests[1]["messages"][2]["content"] == clients.NO_TEXT
    assert sum(item == 17 for item, _, _ in rows) == 3, "two moves, and the empty turn"


def test_what_has_ended_when_play_ends_counts(monkeypatch):
    """The third episode is at work when two have failed; others wait for an answer until then, or do not begin."""
    monkeypatch.setattr(play, "FAILURES_IN_A_ROW", 2)
    closed, noted = threading.Event(), []

    def play_one(key):
        if key[0] < 2:
            raise clients.GivenUp("status 503")
        assert closed.wait(30)
        if key[0] > 2:
            raise clients.GivenUp("the evaluation ends")
        return {"status": "answered"}

    client = SimpleNamespace(replied=True, close=closed.set)
    found = play.play_all(play_one, [(item, 0) for item in range(9)], 4, lambda *ended: noted.append(ended), client)
    assert {key for key, _ in noted} == {(0, 0), (1, 0), (2, 0)}
    assert dict(noted)[2, 0] == {"status": "answered"}
    assert found.unfinished.keys() == {(item, 0) for item in range(9)} - {(2, 0)}
    assert found.unfinished[8, 0] == "not played, after 2 episodes in a row without a reply"
    assert found.refused == {}


def test_a_refusal_for_good_ends_the_evaluation_and_keeps_what_was_answered(tmp_path):
    allowed = True

    def answer(body):
        return walk(body) if allowed else (401, {}, {"error": {"message": "no"}})

    api = FakeApi(answer)
    with api.running() as url:
        evaluate_api("m", url, maze("17"), tmp_path)
        allowed = False
        assert refusal(evaluate_api, "m", url, maze("0-20", concurrency=2), tmp_path).value == 401
        assert len(api.requests) <= 1 + 2 + 2
        # One that still computes when Python ends would end the process with SIGABRT.
        assert not [thread for thread in threading.enumerate() if thread.name.startswith(("episode", "chat-client"))]
        allowed = True
        result = evaluate_api("m", url, maze("17-18"), tmp_path)
    assert result["episodes"]["answered"] == 2


REPLY = {"item": 1, "sample": 0, "turn": 0, "asked": "x", "added": [], "reply": {"text": "a", "finish": "stop"}}
EPISODE = {"item": 1, "sample": 0, "status": "answered", "turns": 1, "solved": True, "score": 1.0}


def test_a_folder_is_of_one_evaluation_and_its_damaged_rows_are_named(tmp_path):
    settings, file = {"model": "m", "body": {"temperature": 0.0}}, tmp_path / "settings.json"
    Journal(tmp_path, settings | {"model": "mistyped"}).close()  # no reply binds the folder
    with Journal(tmp_path, settings) as journal:
        journal.add_reply(REPLY)
        assert "another process writes here" in str(refusal(Journal, tmp_path, settings))
    with Journal(tmp_path, settings) as journal:
        assert "other messages" in str(refusal(journal.reply, 1, 0, 0, [{"role": "user", "content": "?"}]))
    assert "model 'm', not 'other'" in str(refusal(Journal, tmp_path, settings | {"model": "other"}))
    whole = {name: (tmp_path / f"{name}.jsonl").read_bytes() for name in ("replies", "episodes")}
    for name, row, words in (
        ("replies", b"{", "replies.jsonl: line 2 is no row"),
        ("replies", b'{"item": 1, "item": 2}', "line 2 is no row: not valid JSON .*given twice"),
        ("replies", {name: REPLY[name] for name in REPLY if name != "turn"}, "line 2 is no row: turn"),
        ("replies", REPLY | {"item": True}, "line 2 is no row: item"),
        ("replies", REPLY | {"reply": {"text": None, "finish": "stop"}}, r"line 2 is no row: reply\.text"),
        ("episodes", EPISODE | {"status": "odd"}, "episodes.jsonl: line 1 is no row: status"),
        ("episodes", EPISODE | {"score": None}, "episodes.jsonl: line 1 is no row: it: .*score"),
        ("episodes", EPISODE | {"attempts": []}, "episodes.jsonl: line 1 is no row: attempts"),
        ("episodes", EPISODE | {"turns": 2, "category": "a"}, "replies.jsonl: item 1, .*, but lacks turn 1"),
        ("episodes", EPISODE, "episodes.jsonl: item 1, sample 0 is finished, but lacks category"),
    ):
        line = row if isinstance(row, bytes) else json.dumps(row).encode()
        (tmp_path / f"{name}.jsonl").write_bytes(whole[name] + line + b"\n")
        assert re.search(words, str(refusal(Journal, tmp_path, settings, ["category"])))
        (tmp_path / f"{name}.jsonl").write_bytes(whole[name])
    for content, words in (("{", "not valid JSON"), ("[]", "holds a JSON list"), (None, "is missing beside rows")):
        file.unlink() if content is None else file.write_text(content)
        assert words in str(refusal(Journal, tmp_path, settings))


def test_the_key_is_not_shown(tmp_path, monkeypatch):
    """The key is stored nowhere, although every reply repeats it."""
    key = "sk-very-secret"
    monkeypatch.setenv("MY_KEY", key)
    words = "eval --env maze --items 18 --key_variable MY_KEY --price_in 1 --price_out 1 --turns 1 --out"
    _, out, err, api = command(lambda body: f"{walk(body)} {key}", *words.split(), tmp_path)
    assert api.headers[0]["Authorization"] == f"Bearer {key}"
    assert replies_in(tmp_path)[18, 0, 0]["reply"]["text"].endswith(" ***")
    assert not [file for file in tmp_path.iterdir() if key in file.read_text()]
    assert key not in out + err
