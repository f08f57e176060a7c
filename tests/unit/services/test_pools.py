"""Episodes are the same in this process and over HTTP, for every environment that can be served."""

import time

import pytest
from needs import needs_java

from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.client import ServiceClient
from agentrl_jax.services.pools import LocalPool, RemotePool
from agentrl_jax.services.protocol import routes_of


def told(pool, player, item, turns):
    """Observations and rewards of an episode of a scripted policy."""
    end = time.monotonic() + 60
    lease = pool.open(item, end)
    answers = [lease.first]
    while len(answers) <= turns and not answers[-1].done:
        answers.append(lease.step(player.act(answers[-1].observation), end))
    lease.leave(good=True)
    return [(answer.observation, answer.reward, answer.score, answer.done) for answer in answers]


@pytest.mark.parametrize("name", ["textcraft", "maze", "wordle", "Bandit", pytest.param("sciworld", marks=needs_java)])
def test_in_process_and_over_http(serve, name):
    service, routes = get_service(name), routes_of(name)
    here, there = LocalPool(service), RemotePool(ServiceClient(serve(service, routes), routes, seconds=60))
    for item in (0, 3):
        players = [service.oracle(item) if service.oracle else service.random(item, 5) for _ in range(2)]
        local, remote = (told(pool, player, item, 12) for pool, player in zip((here, there), players))
        assert local == remote
        assert len(local) > 1
    if name == "sciworld":
        assert local[0][0].startswith("Your task is to")
    here.close()
    there.close()
