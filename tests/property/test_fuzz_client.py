"""Arbitrary answers to the services' client: a valid one is read correctly, any other raises the client's error."""

import random

import pytest
from raw_server import play, sound

from agentrl_jax.services.answers import BadAnswer, read_step, refusal
from agentrl_jax.services.protocol import COMPILED


def test_a_few_answers_of_any_kind(raw_server, bounded_memory):
    counts = play(raw_server, "ours", ["step"], 60, random.Random(0))
    assert min(counts.values()) > 5


def test_an_answer_that_is_too_deep_to_be_quoted():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert refusal({"error": deep}) == "a list of too many levels"
    with pytest.raises(BadAnswer, match="found a list of too many levels"):
        read_step(COMPILED, deep)


@pytest.mark.parametrize("missing", ["observation", "reward", "done", "score", "success"])
@pytest.mark.parametrize("value", ["absent", None, "1", [], {}])
def test_no_zero_stands_for_what_a_step_lacks(missing, value):
    answer = sound(COMPILED, "step") | {missing: "\ud800" if (missing, value) == ("observation", "1") else value}
    if value == "absent":
        del answer[missing]
    with pytest.raises(BadAnswer, match="text|observation" if missing == "observation" else missing):
        read_step(COMPILED, answer)
