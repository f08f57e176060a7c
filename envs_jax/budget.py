"""The budget of an episode, and the success of reference policies within it."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int

from envs_jax.errors import BadValue

EXACT, CLOSED_LOOP = "exact", "closed loop"


@dataclasses.dataclass(frozen=True)
class Budget:
    """Maximum numbers of actions and turns in an episode, and of actions in a turn; a `ValueError` if one is below 1.

    The agent sees the state at the start of a turn; then all actions of the turn are executed.
    """

    actions: int
    turns: int
    actions_per_turn: int

    def __post_init__(self):
        if min(self.actions, self.turns, self.actions_per_turn) < 1:
            raise BadValue(f"the budget is {self}; expected at least 1 of each", "budget", self)

    @property
    def reachable(self) -> int:
        """Maximum number of actions that an episode can execute."""
        return min(self.actions, self.turns * self.actions_per_turn)

    @property
    def closed_loop(self) -> bool:
        """Whether every action can have its own turn, so that the agent sees the state before each."""
        return self.turns >= self.reachable

    def turns_of(self, actions: Int[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
        """Returns the numbers of turns of episodes with so many actions; -1 for an episode that uses all it can."""
        used = np.where(actions < 0, self.reachable, np.clip(actions, 1, self.reachable))
        return np.ceil(used / self.actions_per_turn)

    def mean_turns(self, unended: Float64[np.ndarray, "N T"]) -> Float64[np.ndarray, " N"]:
        """Returns the mean number of turns, given the probability of not being over after 0, 1, ... actions.

        T is at least `reachable`; the first turn is always played.
        """
        return 1.0 + unended[:, self.actions_per_turn : self.reachable : self.actions_per_turn].sum(axis=1)

    @classmethod
    def one_per_turn(cls, actions: int) -> "Budget":
        """Returns the budget of an agent that sees the state before each of its actions."""
        return cls(actions, actions, 1)


class Baselines(NamedTuple):
    """Success of uniform random actions, of the best policy and of doing nothing (None if unknown), on N levels.

    `optimal_is` says what `optimal` is. "exact": the best that an agent with this budget can reach; "closed loop": of a
    policy that sees the state before every action, an upper bound for others; else another description.
    `turns` has the mean number of turns of an episode on each level, by the name of the policy, where it is known.
    """

    random: Float64[np.ndarray, " N"]
    optimal: Float64[np.ndarray, " N"]
    optimal_is: str = EXACT
    null: Float64[np.ndarray, " N"] | None = None
    turns: Mapping[str, Float64[np.ndarray, " N"]] = MappingProxyType({})


def optimal_label(kind: str, name: str = "optimal") -> str:
    """Returns the label of optimal play, with its kind (`Baselines.optimal_is`) unless it is exact."""
    return name if kind == EXACT else f"{name} ({kind})"
