"""Exact results on the host: success of the optimal and of the uniform random policy, and shortest safe paths.

Dynamic programming in NumPy over the cells of a level. It is independent of the environment's transition, and tests
compare the two. Level codes and the order of actions are those of `text`. `success_rate` is the probability of the
intended direction; the rest is split over the two perpendicular ones. `S` is the number of cells.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float64, Int8, Int16, Int32, Int64

from envs_jax import grid, packs
from envs_jax.frozen_lake.text import DIRECTIONS, GOAL, HOLE, START

Levels = Sequence[np.ndarray] | packs.Levels
"""Levels of one size."""


def optimal_success(levels: Levels, budget: int, success_rate: float) -> Float64[np.ndarray, " N"]:
    """Returns the highest success probability of closed-loop policies within `budget` actions.

    Such a policy sees the board before every action; see `open_loop` for policies that do not.
    """
    return _success(levels, budget, success_rate, lambda values: values.max(axis=-1))


def random_success(levels: Levels, budget: int, success_rate: float) -> Float64[np.ndarray, " N"]:
    """Returns the probability that `budget` uniform random actions reach the goal."""
    return _success(levels, budget, success_rate, lambda values: values.mean(axis=-1))


def random_unended(levels: Levels, budget: int) -> Float64[np.ndarray, "N T"]:
    """Returns the probability that an episode is not over after 0, 1, ... `budget` uniform random actions.

    Slips do not matter: with them, too, every direction has the same probability.
    """
    levels = np.asarray(levels)
    number, height, width = levels.shape
    flat, ahead = levels.reshape(number, -1), neighbors(height, width)
    live = (flat != GOAL) & (flat != HOLE)
    values = [live.astype(np.float64)]
    for _ in range(budget):
        values.append(live * values[-1][:, ahead].mean(axis=-1))
    return np.stack([value[flat == START] for value in values], axis=1)


def plan_lengths(levels: Levels, budget: int) -> Int32[np.ndarray, " N"]:
    """Returns the number of actions of `plan`, -1 where there is none of at most `budget` actions."""
    plans = (plan(level) for level in np.asarray(levels))
    return np.array([-1 if path is None or len(path) > budget else len(path) for path in plans], np.int32)


def best_actions(levels: Levels, budget: int, success_rate: float) -> Int16[np.ndarray, "N T S"]:
    """Returns the action of an optimal closed-loop policy in each cell, after 0, 1, ... `budget` - 1 actions.

    Ties go to the smallest id.
    """
    chosen: list[np.ndarray] = []

    def choose(values: np.ndarray) -> np.ndarray:
        chosen.append(values.argmax(axis=-1).astype(np.int16))
        return values.max(axis=-1)

    _success(levels, budget, success_rate, choose)
    return np.stack(chosen[::-1], axis=1)


def plan(level: Int8[np.ndarray, "H W"]) -> Int32[np.ndarray, " L"] | None:
    """Returns a shortest path over safe cells as action ids, or None if there is none.

    It is an optimal plan if moves never slip. Ties go to the path found first, trying actions in order of their id.
    """
    level = np.asarray(level)
    flat, ahead = level.reshape(-1), neighbors(*level.shape).tolist()
    queue = np.flatnonzero(flat == START).tolist()
    paths: dict[int, list[int]] = {queue[0]: []}
    for cell in queue:  # which grows meanwhile
        if flat[cell] == GOAL:
            return np.array(paths[cell], np.int32)
        for action, to in enumerate(ahead[cell]):
            if to not in paths and flat[to] != HOLE:
                paths[to] = [*paths[cell], action]
                queue.append(to)
    return None


def neighbors(height: int, width: int) -> Int64[np.ndarray, "S 4"]:
    """Returns the next cell from each cell in each direction; at the edge of the board the cell itself."""
    return grid.neighbors(np.pad(np.arange(height * width).reshape(height, width), 1, mode="edge"), DIRECTIONS)


def _success(
    levels: Levels, budget: int, success_rate: float, choose: Callable[[np.ndarray], np.ndarray]
) -> Float64[np.ndarray, " N"]:
    """Backward induction over the actions left; `choose` reduces action values [N, S, 4] to state values [N, S]."""
    levels = np.asarray(levels)
    number, height, width = levels.shape
    flat = levels.reshape(number, -1)
    ahead = neighbors(height, width)
    goal = (flat == GOAL).astype(np.float64)
    ended = (flat == GOAL) | (flat == HOLE)
    slip = (1.0 - success_rate) / 2
    value = goal
    for _ in range(budget):
        to = value[:, ahead]
        actions = success_rate * to + slip * (np.roll(to, 1, axis=-1) + np.roll(to, -1, axis=-1))
        value = np.where(ended, goal, choose(actions))
    return value[flat == START]
