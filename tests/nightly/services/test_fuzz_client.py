"""Many arbitrary answers to the services' client, of all kinds of servers; and long ones, also to scenes of texts."""

import random

import pytest
from raw_server import WIRE, ask, play, response
from scene_lists import SERVICES, STARTS, check_long_texts

from agentrl_jax.services.client import ServiceClient
from agentrl_jax.services.protocol import COMPILED


@pytest.mark.parametrize("name", sorted(WIRE))
def test_answers_of_any_kind(name, raw_server, bounded_memory):
    routes = ["create", "step", *(["observation"] if WIRE[name].fetches_observation else ["reset"])]
    counts = play(raw_server, name, routes, 300, random.Random(name))
    assert min(counts.values()) > 100


def test_a_long_answer_that_is_refused_takes_little_more_memory(raw_server, bounded_memory):
    raw_server.answer = response(b'{"error":"' + b"x" * (60 << 20) + b'"}')
    client = ServiceClient(f"http://127.0.0.1:{raw_server.server_address[1]}", COMPILED, seconds=60.0, connections=1)
    assert ask(client, "step") is None
    client.close()


@pytest.mark.parametrize("name", SERVICES)
def test_no_text_takes_more_than_a_moment(name):
    check_long_texts(name, STARTS)
