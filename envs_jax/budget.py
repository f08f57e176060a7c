"""The budget of an episode, and the success of reference policies within it.

Shapes: `N` levels.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

EXACT, CLOSED_LOOP = "exact", "closed loop"


@dataclasses.dataclass(frozen=True)
class Budget:
    """Limits of an episode.

    Attributes:
        actions: primitive actions of an episode.
        turns: responses of an episode; the agent sees the state before each of them.
        actions_per_turn: actions of one response; they are all executed before the agent sees the state again.

    Raises:
        ValueError: a limit is less than 1.
    """

    actions: int
    turns: int
    actions_per_turn: int

    def __post_init__(self):
        if min(self.actions, self.turns, self.actions_per_turn) < 1:
            raise ValueError(f"{self}; expected at least 1 of each")

    @property
    def reachable(self) -> int:
        """Most primitive actions that an episode can execute."""
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
    """Success of reference policies, level by level.

    Attributes:
        random: f64[N] of uniform random actions until the budget is spent.
        optimal: f64[N] of the best policy.
        optimal_is: what `optimal` is. "exact": the best that an agent with this budget can reach; "closed loop": of a
            policy that sees the state before every action, an upper bound for others; else another description.
        null: f64[N] of doing nothing, that is, whether the start state is solved; None if unknown.
    """

    random: np.ndarray
    optimal: np.ndarray
    optimal_is: str = EXACT
    null: np.ndarray | None = None


def optimal_label(kind: str, name: str = "optimal") -> str:
    """Returns the label of optimal play, with its kind (`Baselines.optimal_is`) unless it is exact."""
    return name if kind == EXACT else f"{name} ({kind})"
