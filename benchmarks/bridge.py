"""Turns per second of a service behind a server, compared with the same environment in this process.

    python benchmarks/bridge.py [--env textcraft] [--instances 1 16 64 256] [--turns 6] [--repeats 3]

Both play the same episodes with the same scripted actions, one after the other, through the bridge that a rollout uses
(one call per turn for all instances, each in a thread). The server is another process on this machine.
"""

import argparse
import functools
import tempfile
import time
from pathlib import Path

from agentrl_jax.config import Config, PromptConfig, ServiceConfig, TaskConfig
from agentrl_jax.rollout.envs.concurrency import run_all
from agentrl_jax.services.action_parsing import react_response
from agentrl_jax.services.bridge import BridgeConfig, BridgedEnvironment
from agentrl_jax.setup.served_task import ServedTask
from agentrl_jax.setup.service_tasks import Services

DEADLINE = 300.0


def seconds(task: ServedTask, instances: int, turns: int, workers: int) -> float:
    """Returns the time of `turns` turns of `instances` episodes, without their resets."""
    bridge = BridgeConfig(items=task.training, seconds=DEADLINE)
    envs = [BridgedEnvironment(task.service, task.pool, bridge) for _ in range(instances)]
    players = [task.service.random(task.training[n % len(task.training)], n) for n in range(instances)]
    shown = answered(run_all([functools.partial(env.reset, n) for n, env in enumerate(envs)], DEADLINE, workers))
    first = list(shown)
    began = time.perf_counter()
    for _ in range(turns):
        responses = [react_response(player.act(text)) for player, text in zip(players, first)]
        jobs = [functools.partial(env.step, response, ()) for env, response in zip(envs, responses)]
        answered(run_all(jobs, DEADLINE, workers))
    taken = time.perf_counter() - began
    for env in envs:
        env.close()
    return taken


def answered(outcomes: list) -> list:
    """Returns the outcomes; raises if one of them is an error."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def main() -> None:
    """Prints a line for each number of instances."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="textcraft")
    parser.add_argument("--items", default="125-415", help="items that are played; of TextCraft goals of depth 2")
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=64)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        places = {
            url: Services(
                Config(
                    tasks=(TaskConfig(env=given.env, groups=max(given.instances), items=given.items, held_out="0"),),
                    env=ServiceConfig(url=url, workers=given.workers),
                    prompt=PromptConfig(style="chat"),
                ),
                lambda: Path(folder),
            )
            for url in ("local", "")
        }
        try:
            for count in given.instances:
                rates = {url: [] for url in places}
                for repeat in range(given.repeats + 1):
                    for url, services in places.items():
                        rate = count * given.turns / seconds(services.tasks[0], count, given.turns, given.workers)
                        if repeat:  # the first repetition starts the server and opens instances
                            rates[url].append(rate)
                local, remote = (max(rates[url]) for url in ("local", ""))
                print(
                    f"{count:4d} instances: {remote:8.0f} turns/s over HTTP, {local:8.0f} in process, "
                    f"ratio {remote / local:.3f}",
                    flush=True,
                )
        finally:
            for services in places.values():
                services.close()


if __name__ == "__main__":
    main()
