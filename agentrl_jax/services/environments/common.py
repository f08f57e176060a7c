"""What several environments share: scripted policies, and the summary of an episode of LMRL-Gym's games."""

import random
import re
from collections.abc import Sequence
from typing import Any

from agentrl_jax.services.environment import ServiceEnvironment, StepResult


class PlannedPolicy:
    """Plays the planned `actions` in order, and another action after their end."""

    def __init__(self, actions: Sequence[str], then: str = ""):
        self.actions, self._then = actions, then
        self._left = iter(actions)

    def act(self, observation: str) -> str:
        """The next action."""
        return next(self._left, self._then)


class UniformPolicy:
    """Chooses actions uniformly at random."""

    def __init__(self, actions: Sequence[str], seed: int | str):
        self._actions, self._rng = actions, random.Random(seed)

    def act(self, observation: str) -> str:
        """A random action."""
        return self._rng.choice(self._actions)


_LISTED = re.compile(r"Available actions: \[(.*)\]")
_QUOTED = re.compile(r'"([^"]*)"')
_CHECK = "check available actions"


def listed_actions(observation: str) -> list[str]:
    """The actions that an observation of BabyAI lists, without that which lists them."""
    lists = _LISTED.findall(observation)
    return [name for name in _QUOTED.findall(lists[-1]) if name != _CHECK] if lists else []


class ListedPolicy:
    """Chooses uniformly among the actions that an observation of BabyAI lists."""

    def __init__(self, seed: int | str):
        self._rng = random.Random(seed)

    def act(self, observation: str) -> str:
        """A random one of the listed actions."""
        return self._rng.choice(listed_actions(observation) or ["turn left"])


class LmrlGame(ServiceEnvironment):
    """A game of LMRL-Gym; keeps a summary of the episode, which AgentGym serves as /detail."""

    def __init__(self) -> None:
        self._detail: dict[str, Any] = {"done": False, "reward": 0.0, "deleted": False}

    def detail(self) -> dict[str, Any]:
        """What names the episode, its last observation, the sum of its rewards, and whether it is over."""
        return dict(self._detail)

    def _start(self, observation: str, **facts: Any) -> StepResult:
        self._detail = {**facts, "deleted": False, "reward": 0.0}
        return self._answer(observation)

    def _answer(self, observation: str, *, reward: float = 0.0, done: bool = False) -> StepResult:
        self._detail.update(observation=observation, reward=self._detail["reward"] + reward, done=done)
        return StepResult(observation, reward=reward, score=reward, done=done)
