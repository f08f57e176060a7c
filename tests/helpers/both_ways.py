"""Episodes of services in this process and over HTTP, by one client or many."""

import concurrent.futures
import time

from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.client import ServiceClient
from agentrl_jax.services.environments.textcraft.env import SERVICE as TEXTCRAFT
from agentrl_jax.services.environments.textcraft.env import TextCraft
from agentrl_jax.services.environments.textcraft.scripted import Random
from agentrl_jax.services.pools import LocalPool, RemotePool
from agentrl_jax.services.protocol import ROUTES, routes_of
from agentrl_jax.services.server.limits import Limits


def told(pool, player, item, turns):
    """Observations and rewards of an episode of a scripted policy."""
    end = time.monotonic() + 60
    lease = pool.open(item, end)
    answers = [lease.first]
    while len(answers) <= turns and not answers[-1].done:
        answers.append(lease.step(player.act(answers[-1].observation), end))
    lease.leave(good=True)
    return [(answer.observation, answer.reward, answer.score, answer.done) for answer in answers]


def check_both_ways(serve, name):
    """Episodes of a service are the same in this process and over HTTP."""
    service, routes = get_service(name), routes_of(name)
    here, there = LocalPool(service), RemotePool(ServiceClient(serve(service, routes), routes, seconds=60))
    for item in (0, 3):
        players = [service.oracle(item) if service.oracle else service.random(item, 5) for _ in range(2)]
        local, remote = (told(pool, player, item, 12) for pool, player in zip((here, there), players))
        assert local == remote
        assert len(local) > 1
    here.close()
    there.close()


def transcript(first, step, item):
    player, told, done = Random(item), [], False
    while not done and len(told) < 6:
        answer = step(player.act(first.observation))
        told.append((answer.observation, answer.reward, answer.done))
        done = answer.done
    return first.observation, told


def check_many_instances(serve, count):
    """The transcript of each of many instances of TextCraft, played at once, is that of the environment alone."""
    url = serve(TEXTCRAFT, ROUTES["textcraft"], Limits(instances=count))
    client = ServiceClient(url, ROUTES["textcraft"], seconds=60, connections=64)

    def remote(item):
        handle = client.create()
        return transcript(client.reset(handle, item), lambda action: client.step(handle, action), item)

    def alone(item):
        env = TextCraft()
        return transcript(env.reset(item), env.step, item)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        found = list(pool.map(remote, range(count)))
    assert found == [alone(item) for item in range(count)]
