"""Exact success of the best policy that commits to several moves per turn and sees the board only between turns.

Dynamic programming over (cell, actions left, turns left). Within a turn, a search over sequences of moves tracks the
distribution over cells (the belief). The search is branch and bound: a belief is dropped if even an agent that saw the
board after every further move of this turn would not beat the best sequence found so far. The result is exact, and few
of the 4^A sequences of a turn of A moves are visited.

Shapes: `N` levels, `S` cells, `K` beliefs.
"""

import numpy as np
from jaxtyping import Bool, Float64, Int64

from envs_jax.budget import Budget
from envs_jax.frozen_lake.oracle import Levels, neighbors, optimal_success
from envs_jax.frozen_lake.text import GOAL, HOLE, START

MAX_BELIEFS = 100_000
"""Maximum number of beliefs that are kept at a time; this bounds memory (51 MB for 4x4 boards) and time."""

_LEVELS = 8
"""Levels that are searched in one batch."""

_TOLERANCE = 1e-12
"""The search ignores sequences that are better by less than this."""


Beliefs = tuple[Int64[np.ndarray, " K"], Int64[np.ndarray, " K"], Float64[np.ndarray, "K S"]]
"""For each belief its level, the cell where the turn began, and the distribution over cells."""


class TooManyBeliefsError(ValueError):
    """A search would keep more than `MAX_BELIEFS` beliefs."""


def committed_success(levels: Levels, budget: Budget, success_rate: float) -> Float64[np.ndarray, " N"]:
    """Returns the highest success of policies that choose all moves of a turn at its start; a `TooManyBeliefsError`."""
    levels = np.asarray(levels)
    if budget.closed_loop:
        return optimal_success(levels, budget.reachable, success_rate)
    parts = [levels[first : first + _LEVELS] for first in range(0, len(levels), _LEVELS)]
    return np.concatenate([_Search(part, budget.actions_per_turn, success_rate).success(budget) for part in parts])


class _Search:
    """The values of N levels, [N, S], by turns and moves left."""

    def __init__(self, levels: np.ndarray, per_turn: int, success_rate: float):
        self.per_turn = per_turn
        # f64[4, S, S]: where a move leads from each cell, ignoring that holes and goal are absorbing.
        intended = np.swapaxes(np.eye(levels[0].size)[neighbors(*levels.shape[1:])], 0, 1)
        slip = (1.0 - success_rate) / 2
        self.moves = success_rate * intended + slip * (np.roll(intended, 1, axis=0) + np.roll(intended, -1, axis=0))
        flat = levels.reshape(len(levels), -1)
        self.goal = flat == GOAL
        self.live = ~self.goal & (flat != HOLE)
        self.start = flat == START
        self.values: dict[tuple[int, int], np.ndarray] = {}

    def success(self, budget: Budget) -> Float64[np.ndarray, " N"]:
        """Returns the values of the starts."""
        return self._value(budget.turns, budget.actions, self.start)[self.start]

    def _value(self, turns: int, moves: int, wanted: Bool[np.ndarray, "N S"]) -> Float64[np.ndarray, "N S"]:
        """Returns success from each cell of `wanted`; 0 in other cells except the goal."""
        moves = min(moves, turns * self.per_turn)
        if (turns, moves) not in self.values:
            self.values[turns, moves] = self._turn(turns, moves, wanted) if moves else self.goal.astype(np.float64)
        return self.values[turns, moves]

    def _turn(self, turns: int, moves: int, wanted: Bool[np.ndarray, "N S"]) -> Float64[np.ndarray, "N S"]:
        # after[j]: success if the turn ends after j moves. bound[j]: success if it continues and the agent sees the
        # board after each further move, which is never less.
        depth = min(self.per_turn, moves)
        after = [self._value(turns - 1, moves - j, self.live) for j in range(1, depth + 1)]
        bound = [after[-1]]
        for ended in reversed(after[:-1]):
            best = np.einsum("act,nt->nac", self.moves, bound[0]).max(axis=1)
            bound.insert(0, np.maximum(ended, np.where(self.live, best, self.goal)))
        value = np.where(self.goal, 1.0, 0.0)
        level, cell = np.nonzero(wanted & self.live)
        belief = np.zeros((len(level), self.live.shape[1]))
        belief[np.arange(len(level)), cell] = 1.0
        for greedily in (True, False):
            self._descend(value, (level, cell, belief), after, bound, greedily)
        return value

    def _descend(
        self, value: np.ndarray, beliefs: Beliefs, after: list[np.ndarray], bound: list[np.ndarray], greedily: bool
    ) -> None:
        """Raises `value` [N, S] to the best sequence from the beliefs.

        With `greedily`, only the move with the highest bound is followed from each belief.
        """
        level, cell, belief = beliefs
        won = np.zeros(len(level))
        for ended, reached in zip(after, bound):
            belief = np.tensordot(belief, self.moves, (1, 1)).reshape(-1, belief.shape[1])
            level, cell, won = (np.repeat(x, 4) for x in (level, cell, won))
            won = won + np.sum(belief * self.goal[level], axis=1)
            belief = belief * self.live[level]
            np.maximum.at(value, (level, cell), won + np.sum(belief * ended[level], axis=1))
            promise = won + np.sum(belief * reached[level], axis=1)
            if greedily:
                kept = np.argmax(promise.reshape(-1, 4), axis=1) + 4 * np.arange(len(level) // 4)
            else:
                kept = np.flatnonzero(promise > value[level, cell] + _TOLERANCE)
            if len(kept) > MAX_BELIEFS:
                raise TooManyBeliefsError(f"{len(kept)} beliefs, more than {MAX_BELIEFS}")
            level, cell, won, belief = level[kept], cell[kept], won[kept], belief[kept]
