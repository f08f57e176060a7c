"""Plays items of a service by scripted policies, and by the random, null and optimal play that stands beside them."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from agentrl_jax.config import Config, PromptConfig, ServiceConfig, TaskConfig
from agentrl_jax.errors import refusals
from agentrl_jax.services.environment import Outcomes, ScriptedPolicy, Service
from agentrl_jax.services.environments.common import PlannedPolicy
from agentrl_jax.services.pools import LocalPool
from agentrl_jax.services.screenshots import Screenshots
from agentrl_jax.setup.scripted_play import ScriptedEpisode, play_all
from agentrl_jax.setup.served_task import ServedTask
from agentrl_jax.setup.service_tasks import Services

LINES = {"random": "random", "null": "null", "optimal": "oracle"}
"""Scripted policies of the lines that stand beside an agent."""


def lines_beside(
    service: Service,
    policy: str,
    found: Outcomes,
    play: Callable[[str], Outcomes],
    report: Callable[[str], None],
) -> dict[str, Outcomes]:
    """Random, null and optimal play, as far as a service has them, by name; `found` are the outcomes of `policy`."""
    report("random, null and optimal play on the same items")
    known = {"oracle": service.oracle is not None, "random": not service.remote, "null": True}
    return {name: found if of == policy else play(of) for name, of in LINES.items() if known[of]}


def play_on_instances(
    task: ServedTask,
    config: Config,
    policy: str,
    action: str,
    chosen: tuple[int, ...],
    plays: int,
    seed: int,
    screenshots: Screenshots | None,
) -> list[list[ScriptedEpisode]]:
    """Plays the items; for each play, the episode of each."""
    found = []
    for play in range(plays):
        if screenshots is not None:
            screenshots.play = play + 1
        policies = _policies(task.service, policy, action, seed + (play << 32))
        with refusals():
            found.append(play_all(task, policies, chosen, config, screenshots))
    return found


def by_upstream_rules(task: ServedTask) -> ServedTask:
    """The task in this process by the rules of AgentGym's server."""
    service = task.service
    as_there = dataclasses.replace(service, oracle=service.upstream_oracle or service.oracle)
    return dataclasses.replace(task, service=as_there, pool=LocalPool(service, upstream=True))


def outcomes_of(played: list[list[ScriptedEpisode]]) -> Outcomes:
    """The outcomes of `play_on_instances`."""
    plays = len(played)
    columns = [[getattr(episode, name) for episode in row] for name in ("solved", "score", "strict") for row in played]
    solved, score, strict = (np.array(columns[start : start + plays]).T for start in range(0, 3 * plays, plays))
    turns = np.array([[len(episode.actions) for episode in row] for row in played]).T
    return Outcomes(solved, score.astype(float), strict, turns)


@contextlib.contextmanager
def connected(
    service: Service, chosen: tuple[int, ...], turns: int, url: str, token_file: str, workers: int
) -> Iterator[tuple[ServedTask, Config]]:
    """The service as the task of a run, and its configuration, to play items inside the block.

    Raises:
        UserError: an item does not exist, or the token file cannot be read.
    """
    listed = ",".join(map(str, chosen))
    config = Config(
        tasks=(TaskConfig(env=service.name, groups=1, items=listed, held_out=listed),),
        env=ServiceConfig(url=url, token_file=token_file, workers=workers),
        prompt=PromptConfig(style="chat", max_turns=turns),
    )
    services = Services(config, lambda: Path("."))
    try:
        yield services.tasks[0], config
    finally:
        services.close()


def _policies(service: Service, policy: str, action: str, seed: int) -> Callable[[int], ScriptedPolicy]:
    if policy == "oracle":
        assert service.oracle is not None
        return service.oracle
    if policy in ("null", "constant"):
        return lambda item: PlannedPolicy((), then=action)
    if policy in service.policies:
        return lambda item: service.policies[policy](item, seed + item)
    return lambda item: service.random(item, seed + item)
