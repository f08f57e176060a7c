"""The budget of an episode, and the success of reference policies within it."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

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
            raise ValueError(f"{self}; expected at least 1 of each")

    @property
    def reachable(self) -> int:
        """Maximum number of actions that an episode can execute."""
        return min(self.actions, self.turns * self.actions_per_turn)

    @property
    def closed_loop(self) -> bool:
        """Whether every action can have its own turn, so that the agent sees the state before each."""
        return self.turns >= self.reachable

    @classmethod
    def one_per_turn(cls, actions: int) -> "Budget":
        """Returns the budget of an agent that sees the state before each of its actions."""
        return cls(actions, actions, 1)


class Baselines(NamedTuple):
    """Success of uniform random actions, of the best policy and of doing nothing (None if unknown), on N levels.

    `optimal_is` says what `optimal` is. "exact": the best that an agent with this budget can reach; "closed loop": of a
    policy that sees the state before every action, an upper bound for others; else another description.
    """

    random: Float64[np.ndarray, " N"]
    optimal: Float64[np.ndarray, " N"]
    optimal_is: str = EXACT
    null: Float64[np.ndarray, " N"] | None = None


def optimal_label(kind: str, name: str = "optimal") -> str:
    """Returns the label of optimal play, with its kind (`Baselines.optimal_is`) unless it is exact."""
    return name if kind == EXACT else f"{name} ({kind})"
