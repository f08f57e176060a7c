"""Invented worlds, against a reader of their passages that knows the sentences only."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.errors import BadValue
from envs_jax.scripted_commands import ScriptedCommands
from envs_jax.searchqa import ANSWER, SEARCH, text
from envs_jax.searchqa.policies import SCRIPTS
from envs_jax.searchqa.questions import COMPARISON, ONE_HOP, TWO_HOP, UNANSWERABLE
from envs_jax.searchqa.world import passage
from envs_jax.testing import check_env

ENTITIES, WORLDS = 24, 48
ENV, PARAMS = envs_jax.make("searchqa", entities=ENTITIES, results=2)
RESET = jax.jit(jax.vmap(ENV.reset_env, in_axes=(0, None)))
STEP = jax.jit(jax.vmap(ENV.step_env, in_axes=(None, 0, 0, None)))

SENTENCES = (
    r"(?P<name>\w+ \w+) was born in (?P<birthplace>\w+) in (?P<year>\d{4})(?: and works for (?P<company>\w+))?",
    r"(?P<name>\w+) was founded in (?P<year>\d{4})(?: and its mayor is (?P<mayor>\w+ \w+))?",
    r"(?P<name>\w+) is in (?P<town>\w+), was founded in (?P<year>\d{4})(?: by (?P<founder>\w+ \w+))?",
)
ASKED = {
    r"where was (.+) born": "birthplace",
    r"when was (.+) (?:born|founded)": "year",
    r"who does (.+) work for": "company",
    r"who is mayor of (.+)": "mayor",
    r"where is (.+)": "town",
    r"who founded (.+)": "founder",
}


def spelled(pieces):
    return "".join(ENV.pieces[piece] for piece in np.asarray(pieces) if piece >= 0)


@pytest.fixture(scope="module")
def worlds():
    keys = jax.random.split(jax.random.key(3), WORLDS)
    observations, states = RESET(keys, PARAMS)
    show = jax.jit(jax.vmap(lambda seed: jax.vmap(lambda e: passage(ENV.world(seed), e))(jnp.arange(ENTITIES))))
    passages = [[spelled(row) for row in rows] for rows in np.asarray(show(states.seed))]
    return jax.device_get(states), [spelled(row) for row in observations], passages


def read(passages):
    """The facts that passages state, by name."""
    facts = {}
    for line in passages:
        found = [re.fullmatch(pattern, line.removesuffix(".\n")) for pattern in SENTENCES]
        (match,) = [match for match in found if match]
        facts[match["name"]] = {key: value for key, value in match.groupdict().items() if value}
    return facts


def answered(question, facts):
    """The answer to a question by facts: its form and what is said, `text.UNKNOWN` if nothing is."""
    if compared := re.fullmatch(r"which is older, (.+) or (.+)\?", question):
        return COMPARISON, min(compared.groups(), key=lambda name: int(facts[name]["year"]))
    for pattern, field in ASKED.items():
        if found := re.fullmatch(pattern + r"\?", question):
            described = re.fullmatch(r"the (birthplace|company|mayor|town|founder) of (.+)", found[1])
            name = facts[described[2]][described[1]] if described else found[1]
            known = facts[name].get(field)
            return (TWO_HOP if described else ONE_HOP if known else UNANSWERABLE), known or text.UNKNOWN
    raise AssertionError(question)


def test_passages_answer_every_question_and_prove_it(worlds):
    states, questions, passages = worlds
    asked = states.question
    forms = set()
    for index, (question, lines) in enumerate(zip(questions, passages)):
        form, answer = answered(question, read(lines))
        gold = asked.gold[index, : asked.gold_length[index]].tobytes().decode()
        assert (form, answer) == (asked.form[index], gold), question
        forms.add(form)
        evidence = {int(row) for row in asked.evidence[index] if row >= 0}
        assert len(evidence) == (2 if form in (TWO_HOP, COMPARISON) else 1)
        # The evidence alone is enough, and without any part of it the answer is not known.
        assert answered(question, read([lines[row] for row in evidence]))[1] == answer
        if form != UNANSWERABLE:
            assert answer in lines[asked.gold_passage[index]]
            assert asked.gold_passage[index] in evidence
    assert forms == {ONE_HOP, TWO_HOP, COMPARISON, UNANSWERABLE}


def test_facts_are_consistent_and_worlds_differ(worlds):
    states, _, passages = worlds
    for lines in passages:
        facts = read(lines)
        assert len(facts) == ENTITIES
        for name, known in facts.items():
            if founder := known.get("founder"):
                assert 20 <= int(known["year"]) - int(facts[founder]["year"]) < 50, name
            if place := known.get("birthplace", known.get("town")):
                assert int(facts[place]["year"]) < int(known["year"])
    hashes = jax.jit(jax.vmap(ENV.level_hash, in_axes=(0, None)))(states, PARAMS)
    assert len({tuple(row) for row in np.asarray(hashes).tolist()}) == len(set(states.seed.tolist())) == WORLDS


def commands(texts, action):
    rows = [ENV.command(action, one.encode()) for one in texts]
    return jax.tree.map(lambda *x: jnp.stack(x), *rows)


def test_an_observation_does_not_depend_on_the_right_answer(worlds):
    states, questions, _ = worlds
    other = states.replace(question=states.question.replace(gold=states.question.gold[::-1].copy()))
    query = commands(questions, SEARCH)
    key = jax.random.key(0)
    found, seen = (STEP(key, one, query, PARAMS) for one in (states, other))
    assert np.array_equal(found[0], seen[0])
    shown = np.asarray(found[1].found)
    subject = states.question.subject
    assert np.mean((shown == subject[:, None]).any(axis=1)) > 0.9, "a question finds the passage of its subject"
    assert spelled(found[0][0]).startswith("<information>Doc 1: ")
    assert found[4]["searched"].all()
    assert not found[4]["answered"].any()


def test_answers_end_an_episode_and_what_is_no_command_is_told(worlds):
    states = worlds[0]
    key, asked = jax.random.key(0), states.question
    golds = [gold[:size].tobytes().decode() for gold, size in zip(asked.gold, asked.gold_length)]
    right = STEP(key, states, commands([f"The {gold.upper()}!" for gold in golds], ANSWER), PARAMS)
    assert right[2].tolist() == [1.0] * WORLDS
    assert right[3].all()
    assert right[4]["answered_unseen"].all()
    again = STEP(key, right[1], commands(golds, ANSWER), PARAMS)
    assert again[2].tolist() == [0.0] * WORLDS
    assert again[1].time.tolist() == [1] * WORLDS
    wrong = STEP(key, states, commands([*golds[1:], "nobody"], ANSWER), PARAMS)
    assert wrong[2].tolist() == [float(a == b) for a, b in zip(golds, [*golds[1:], "nobody"])]
    nothing = jax.tree.map(lambda *x: jnp.stack(x), *[ENV.null_action] * WORLDS)
    state = states
    for _ in range(4):
        shown, state, *_ = STEP(key, state, nothing, PARAMS)
        assert spelled(shown[0]) == text.REFUSED
    assert not state.terminated.any()
    assert jax.vmap(ENV.is_done, in_axes=(0, None))(state, PARAMS).all()


@pytest.mark.nightly
def test_it_keeps_the_contract_of_environments():
    check_env(ScriptedCommands(ENV, SCRIPTS), PARAMS, key=jax.random.key(1), num_steps=5)


def test_other_sizes_are_refused():
    for name, value in (("entities", 23), ("results", 0), ("results", 25), ("information_pieces", 0)):
        with pytest.raises(BadValue) as refused:
            envs_jax.make("searchqa", **{"entities": ENTITIES, name: value})
        assert (refused.value.key, refused.value.value) == (name, value)
