"""Episodes are the same in this process and over HTTP, for every environment that can be served."""

import time

import pytest
from needs import needs_java

from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.client import ServiceClient
from agentrl_jax.services.places import LocalPlace, RemotePlace
from agentrl_jax.services.protocol import wire_of


def told(place, player, item, turns):
    """What an agent is told, and what it earns, in an episode of a scripted player."""
    end = time.monotonic() + 60
    seat = place.open(item, end)
    answers = [seat.first]
    while len(answers) <= turns and not answers[-1].done:
        answers.append(seat.step(player.act(answers[-1].observation), end))
    seat.leave(good=True)
    return [(answer.observation, answer.reward, answer.score, answer.done) for answer in answers]


@pytest.mark.parametrize("name", ["textcraft", "maze", "wordle", "Bandit", pytest.param("sciworld", marks=needs_java)])
def test_in_process_and_over_http(serve, name):
    service, wire = get_service(name), wire_of(name)
    here, there = LocalPlace(service), RemotePlace(ServiceClient(serve(service, wire), wire, seconds=60))
    for item in (0, 3):
        players = [service.oracle(item) if service.oracle else service.random(item, 5) for _ in range(2)]
        local, remote = (told(place, player, item, 12) for place, player in zip((here, there), players))
        assert local == remote
        assert len(local) > 1
    if name == "sciworld":
        assert local[0][0].startswith("Your task is to")
    here.close()
    there.close()
