"""Episodes of scripted policies on a service, several at a time."""

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from agentrl_jax.config import Config
from agentrl_jax.errors import MAX_FOREIGN, BadValue, shortened
from agentrl_jax.rollout.envs.concurrency import run_all
from agentrl_jax.services.client import Lost
from agentrl_jax.services.environment import ScriptedPolicy, StepResult
from agentrl_jax.services.screenshots import SECONDS, Screenshots
from agentrl_jax.services.shadow_env import local_item
from agentrl_jax.setup.served_task import ServedTask


class ScriptedEpisode(NamedTuple):
    """An episode of a scripted policy; `item` is the local number of the item that the service showed."""

    item: int
    actions: list[str]
    solved: bool
    score: float
    """The last score."""
    strict: bool
    """Solved by the stricter rule of the service, if it has one."""
    answers: list[StepResult]
    """What the service answered: to the reset, then to each action."""


def play_all(
    task: ServedTask,
    make_policy: Callable[[int], ScriptedPolicy],
    items: Sequence[int],
    config: Config,
    screenshots: Screenshots | None = None,
) -> list[ScriptedEpisode]:
    """Plays an episode of each item by a scripted policy, in parallel; an episode starts over if its instance is lost.

    The policy is made for the local number of the item, because servers may number differently (`Service.locate`).
    `screenshots` keeps those of the episodes, if given.

    Raises:
        ValueError: the service fails, or an instance was lost in every attempt.
    """
    env, turns = config.env, config.prompt.max_turns
    play = functools.partial(_play_once, task, make_policy, screenshots, turns, env.deadline)
    jobs = [functools.partial(_with_retries, play, env.retries, item) for item in items]
    rounds = -(-len(items) // env.workers) * (env.retries + 1)
    found = run_all(jobs, env.deadline * (turns + 1) * rounds, env.workers)
    for outcome in found:
        if isinstance(outcome, BaseException):
            raise BadValue(
                f"{task.config.label} {task.address}: {shortened(outcome, MAX_FOREIGN)}",
                key=task.config.label,
                value=task.address,
            ) from outcome
    return found


def _with_retries(play: Callable[[int], ScriptedEpisode], retries: int, item: int) -> ScriptedEpisode:
    """Plays an item, and again where its instance was lost; `Lost` if it was in every attempt."""
    for _ in range(retries):
        with contextlib.suppress(Lost):
            return play(item)
    return play(item)


def _play_once(
    task: ServedTask,
    make_policy: Callable[[int], ScriptedPolicy],
    screenshots: Screenshots | None,
    turns: int,
    seconds: float,
    item: int,
) -> ScriptedEpisode:
    lease = task.pool.open(item, time.monotonic() + seconds)
    actions: list[str] = []
    answer, good = lease.first, False
    answers = [answer]
    kept = None if screenshots is None else screenshots.episode(item)

    def show() -> None:
        if kept is not None:
            kept.take(len(actions), lambda: lease.screenshot(time.monotonic() + SECONDS))

    try:
        show()
        number = local_item(task.service, item, answer.observation)
        policy = make_policy(number)
        while not answer.done and len(actions) < turns:
            actions.append(policy.act(answer.observation))
            answer = lease.step(actions[-1], time.monotonic() + seconds)
            answers.append(answer)
            show()
        good = True
    finally:
        lease.leave(good=good)
    solved = task.service.solved(answer)
    strict = solved if task.service.strict is None else task.service.strict(answer)
    return ScriptedEpisode(number, actions, solved, answer.score, strict, answers)
