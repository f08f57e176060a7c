"""What an agent may do in an episode, and the success of reference policies within it.

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
        actions_per_turn: actions of one response, which are executed before the state is seen again.

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
        """Primitive actions that an episode can execute."""
        return min(self.actions, self.turns * self.actions_per_turn)

    @property
    def closed_loop(self) -> bool:
        """Every action can have a turn of its own, so that the state is seen before each."""
        return self.turns >= self.reachable

    @classmethod
    def one_per_turn(cls, actions: int) -> "Budget":
        """That of an agent which sees the state before every one of its actions."""
        return cls(actions, actions, 1)


class Baselines(NamedTuple):
    """Success of reference policies, level by level.

    Attributes:
        random: f64[N] of uniform random actions until the budget is spent.
        optimal: f64[N] of the best policy.
        optimal_is: "exact": no agent with this budget does better, and one does as well; "closed loop": of a policy
            that sees the state before every action, an upper bound for one that does not; otherwise what it is instead.
        null: f64[N] of doing nothing, which is whether the start state is solved; None where it is not known.
    """

    random: np.ndarray
    optimal: np.ndarray
    optimal_is: str = EXACT
    null: np.ndarray | None = None


def optimal_label(kind: str, name: str = "optimal") -> str:
    """Returns the name of the line of optimal play, with what it is (`Baselines.optimal_is`) where it is not exact."""
    return name if kind == EXACT else f"{name} ({kind})"
