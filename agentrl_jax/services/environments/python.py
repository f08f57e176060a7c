"""Python environments as services: for scripted policies, API models, self-checks and servers.

An answer's actions are written as in an answer block: `Up || Down`. What is read of a response is the text after
`Action:`, and `HostEnvironment.step` gets it in place of the whole response.
"""

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agentrl_jax.environments.kinds import PYTHON_RULE
from agentrl_jax.environments.levels import SEEDS
from agentrl_jax.environments.pool import Opened, Pool, open_pool
from agentrl_jax.environments.protocol import Traits
from agentrl_jax.services.action_parsing import first_action
from agentrl_jax.services.environment import ItemError, Service, ServiceEnvironment, StepResult
from agentrl_jax.services.environments.common import PlannedPolicy

TURNS = 20
"""Usual limit of turns, where nobody gives another."""

SEPARATOR = "||"


class Budget(NamedTuple):
    """Actions of a turn and of an episode; further ones are ignored. By default as `prompt.max_actions_per_turn`."""

    per_turn: int = 5
    actions: int = 2**31


class _Instance(ServiceEnvironment):
    """An environment that plays episodes one after another."""

    def __init__(self, pool: Pool, budget: Budget):
        self._pool, self._budget = pool, budget
        self._env: Opened | None = pool.open()
        self._fresh = True
        self._left, self._score = budget.actions, 0.0
        self._last = StepResult("")

    def reset(self, item: int) -> StepResult:
        """See `ServiceEnvironment`."""
        if not 0 <= item < (self._pool.traits.items or len(SEEDS)):
            raise ItemError(f"item {item} does not exist in {self._pool.name}", item)
        if not self._fresh:
            self.close()
        self._env = self._env or self._pool.open()
        self._fresh, self._left, self._score = False, self._budget.actions, 0.0
        self._last = StepResult(self._env.reset(item))
        return self._last

    def step(self, action: str) -> StepResult:
        """See `ServiceEnvironment`."""
        if self._last.done or self._env is None:
            return self._last
        items = [item for part in action.split(SEPARATOR) if (item := part.strip())][: self._budget.per_turn]
        named = {name.lower(): name for name in self._pool.traits.actions}
        known = [named[item.lower()] for item in items if item.lower() in named] if named else items
        known = known[: self._left]
        found = self._env.step(action, known)
        self._left -= len(known)
        self._score += found.reward
        truncated = not found.terminated and (found.truncated or self._left <= 0)
        info = {**found.info, "success": found.success, "truncated": truncated, "valid": found.valid}
        self._last = StepResult(
            found.observation, found.reward, self._score, done=found.terminated or truncated, info=info
        )
        return self._last

    def plan(self) -> Sequence[str]:
        """The actions that solve the episode from here."""
        assert self._env is not None
        return self._env.plan()

    def close(self) -> None:
        """See `ServiceEnvironment`."""
        env, self._env = self._env, None
        if env is not None:
            env.close()


class _RandomPolicy:
    """As many uniform random actions a turn as there may be."""

    def __init__(self, actions: Sequence[str], per_turn: int, seed: str):
        self._actions, self._per_turn, self._rng = actions, per_turn, random.Random(seed)

    def act(self, observation: str) -> str:
        """The next action."""
        return _answer(self._rng.choices(self._actions, k=self._per_turn) if self._actions else ())


def _answer(actions: Sequence[str]) -> str:
    return f" {SEPARATOR} ".join(actions)


def _instruction(name: str, traits: Traits) -> str:
    """What an agent reads first that does not know the format of a run's prompts."""
    actions = f"\nAvailable actions: {', '.join(traits.actions)}." if traits.actions else ""
    form = f"Write your answer after 'Action:', with {SEPARATOR} between several actions."
    return f"{traits.instruction or f'Act in {name}.'}{actions}\n{form}"


def service_of(pool: Pool, name: str, budget: Budget | None = None) -> Service:
    """The service of a pool's environments, called `name`, within a budget.

    Random play without declared actions does nothing.
    """
    traits, limits = pool.traits, budget or Budget()

    def plan(item: int) -> PlannedPolicy:
        env = pool.open()
        try:
            env.reset(item)
            actions = env.plan()
        finally:
            env.close()
        turns = range(0, len(actions), limits.per_turn)
        return PlannedPolicy([_answer(actions[first : first + limits.per_turn]) for first in turns])

    asked = functools.cache(pool.open)

    return Service(
        name=name,
        make=lambda upstream: _Instance(pool, limits),
        items=traits.items or len(SEEDS),
        instruction=_instruction(pool.name, traits),
        read=first_action,
        turns=TURNS,
        solved=lambda answer: answer.info.get("success") is True,
        success_rule=PYTHON_RULE,
        oracle=plan if traits.has_plan else None,
        random=lambda item, seed: _RandomPolicy(traits.actions, limits.per_turn, f"{item} {seed}"),
        advise=(lambda instance: _answer(instance.plan()[: limits.per_turn])) if traits.has_plan else None,
        content=(lambda item: asked().content(item)) if traits.has_content else None,
        score_range=(float("-inf"), float("inf")),
        floor=1.0,
    )


def python_service(path: str, options: Mapping[str, Any] | None = None) -> Service:
    """The service of a class by its import path; raises as `pool.open_pool`."""
    return service_of(open_pool(path, options or {}), path)
