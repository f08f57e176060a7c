"""Load test of a service with many instances: errors, differences from a single instance, speed and memory.

    python benchmarks/load.py --env sciworld --instances 64 [--turns 10]

All instances play an episode of random actions over HTTP at the same time. The same episodes are then played one after
the other on a single instance in this process, and every answer is compared.
"""

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.client import ServiceClient
from agentrl_jax.services.environment import ScriptedPolicy
from agentrl_jax.services.pools import InstancePool, Lease, LocalPool, RemotePool
from agentrl_jax.services.process import ServiceProcess
from agentrl_jax.services.protocol import routes_of

DEADLINE = 600.0


def play(pool: InstancePool, player: ScriptedPolicy, item: int, turns: int) -> tuple[Lease, float, list[tuple]]:
    """Plays an episode; returns the lease of its instance, its start time, and all answers."""
    end = time.monotonic() + DEADLINE
    lease = pool.open(item, end)
    began, answers = time.monotonic(), [lease.first]
    while len(answers) <= turns and not answers[-1].done:
        answers.append(lease.step(player.act(answers[-1].observation), end))
    return lease, began, [(answer.observation, answer.reward, answer.score, answer.done) for answer in answers]


def memory(process: psutil.Process) -> float:
    """Returns the unshared memory of a process and its children, in MB."""
    family = [process, *process.children(recursive=True)]
    return sum(member.memory_full_info().uss for member in family) / 2**20


def main() -> None:
    """Prints the results; exits with 1 if an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="sciworld")
    parser.add_argument("--instances", type=int, default=32)
    parser.add_argument("--turns", type=int, default=10)
    given = parser.parse_args()
    service, routes = get_service(given.env), routes_of(given.env)
    items = service.panel().items if service.panel else range(service.items)
    chosen = [items[number * len(items) // given.instances] for number in range(given.instances)]
    before = {child.pid for child in psutil.Process().children()}
    with tempfile.TemporaryDirectory() as folder:
        process = ServiceProcess(given.env, Path(folder) / "log", max_instances=given.instances)
        url = process.url()
        server = next(child for child in psutil.Process().children() if child.pid not in before)
        empty = memory(server)
        client = ServiceClient(url, routes, seconds=DEADLINE, connections=given.instances, token=process.token)
        pool, began = RemotePool(client), time.monotonic()

        def episode(item: int, pool: InstancePool = pool) -> tuple[Lease, float, list[tuple]]:
            return play(pool, service.random(item, item), item, given.turns)

        with ThreadPoolExecutor(given.instances) as pool:
            together = list(pool.map(episode, chosen))
        ended = time.monotonic()
        held = memory(server) - empty
        process.close()
    local, differences = LocalPool(service), 0
    for item, (_, _, answers) in zip(chosen, together):
        lease, _, alone = episode(item, local)
        differences += alone != answers
        lease.leave(good=True)
    local.close()
    steps = sum(len(answers) - 1 for _, _, answers in together)
    print(
        f"{given.env}: {given.instances} instances at once, {steps} steps; the last one was open after "
        f"{max(at for _, at, _ in together) - began:.0f} s, the last answer came after {ended - began:.0f} s; "
        f"{held:.0f} MB, {held / given.instances:.0f} MB each; {differences} episodes differ from those of one instance"
    )
    raise SystemExit(bool(differences))


if __name__ == "__main__":
    main()
