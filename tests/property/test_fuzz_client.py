"""Arbitrary answers to the services' client: a valid one is read correctly, any other raises the client's error."""

import random

import pytest
from raw_server import WIRE, ask, play, response, sound
from scene_lists import SERVICES, STARTS, check_long_texts

from agentrl_jax.services.answers import BadAnswer, read_step, refusal
from agentrl_jax.services.client import ServiceClient
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


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(WIRE))
def test_answers_of_any_kind(name, raw_server, bounded_memory):
    routes = ["create", "step", *(["observation"] if WIRE[name].fetches_observation else ["reset"])]
    counts = play(raw_server, name, routes, 300, random.Random(name))
    assert min(counts.values()) > 100


@pytest.mark.nightly
def test_a_long_answer_that_is_refused_takes_little_more_memory(raw_server, bounded_memory):
    raw_server.answer = response(b'{"error":"' + b"x" * (60 << 20) + b'"}')
    client = ServiceClient(f"http://127.0.0.1:{raw_server.server_address[1]}", COMPILED, seconds=60.0, connections=1)
    assert ask(client, "step") is None
    client.close()


@pytest.mark.nightly
@pytest.mark.parametrize("name", SERVICES)
def test_no_text_takes_more_than_a_moment(name):
    check_long_texts(name, STARTS)
