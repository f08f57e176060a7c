"""Exact results on the host: shortest plans, and success of the optimal and of the uniform random policy.

Plain Python and NumPy over the graph of reachable positions. It is independent of the environment's transition, and
tests compare the two. Level codes are those of `text`. Shapes: `S` positions, `N` levels.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int8, Int32

from envs_jax import grid
from envs_jax.errors import BadValue
from envs_jax.sokoban.text import BOX, BOX_ON_TARGET, DIRECTIONS, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, WALL

MAX_POSITIONS = 2_000_000
"""Positions after which a search gives up."""

Position = tuple[int, frozenset[int]]
"""Cell of the player and cells of the boxes."""


@dataclass(frozen=True)
class Graph:
    """The positions reachable from a level, in breadth-first order; the first one is the start.

    `next` is the position after each action; the position itself if it is solved or at the depth limit. `parent` is a
    predecessor on a shortest path (-1 for the start), and `action` the action from it.
    """

    next: Int32[np.ndarray, "S 4"]
    solved: Bool[np.ndarray, " S"]
    parent: Int32[np.ndarray, " S"]
    action: Int32[np.ndarray, " S"]


def explore(level: np.ndarray, depth_limit: int | None = None, stop_when_solved: bool = False) -> Graph:
    """Searches the positions of a level, i8[H, W], breadth first; cells outside the board count as wall.

    Positions that need `depth_limit` actions are not expanded. Raises a `ValueError` if there are more than
    `MAX_POSITIONS`.
    """
    level = np.asarray(level)
    ahead = _neighbors(level)
    targets, (player, boxes) = _targets_and_start(level)

    positions: list[Position] = [(player, boxes)]
    index = {positions[0]: 0}
    following, depth, parent, action, solved = [], [0], [-1], [-1], [targets <= boxes]
    for cursor, (player, boxes) in enumerate(positions):  # which grows meanwhile
        if stop_when_solved and solved[-1]:
            break
        row = [cursor] * 4
        if not solved[cursor] and (depth_limit is None or depth[cursor] < depth_limit):
            for direction in range(4):
                position = _move(ahead, player, boxes, direction)
                if position not in index:
                    index[position] = len(positions)
                    positions.append(position)
                    depth.append(depth[cursor] + 1)
                    parent.append(cursor)
                    action.append(direction)
                    solved.append(targets <= position[1])
                    if stop_when_solved and solved[-1]:
                        break
                row[direction] = index[position]
        following.append(row)
        if len(positions) > MAX_POSITIONS:
            raise BadValue(
                f"the level has more than {MAX_POSITIONS} reachable positions; expected fewer: use a smaller board, "
                "fewer boxes or a depth limit",
                "level",
                MAX_POSITIONS,
            )
    following += [[i] * 4 for i in range(len(following), len(positions))]
    return Graph(
        next=np.array(following, np.int32),
        solved=np.array(solved),
        parent=np.array(parent, np.int32),
        action=np.array(action, np.int32),
    )


def solve(level: Int8[np.ndarray, "H W"]) -> Int32[np.ndarray, " L"] | None:
    """Returns a shortest plan as action ids (empty if the level is solved), or None; errors are those of `explore`."""
    return _plan(explore(level, stop_when_solved=True))


def _plan(graph: Graph) -> Int32[np.ndarray, " L"] | None:
    if not graph.solved.any():
        return None
    plan, position = [], int(np.argmax(graph.solved))
    while position > 0:
        plan.append(graph.action[position])
        position = graph.parent[position]
    return np.array(plan[::-1], np.int32)


def plan_after(
    level: Int8[np.ndarray, "H W"], first: Int32[np.ndarray, " F"], limit: int
) -> Int32[np.ndarray, " L"] | None:
    """Returns a shortest plan after the actions `first`, padded with -1; both have at most `limit` actions.

    None if there is none, or if the level is solved on the way. Errors are those of `explore`.
    """
    board = np.array(level)
    flat, ahead, taken = board.reshape(-1), _neighbors(board), first[first >= 0].tolist()
    targets, (player, boxes) = _targets_and_start(board)
    for action in taken:
        if targets <= boxes:
            return None
        player, boxes = _move(ahead, player, boxes, action)
    flat[:] = np.where(flat == WALL, WALL, FLOOR)
    flat[[*targets]] = TARGET
    flat[[*boxes]] = [BOX_ON_TARGET if cell in targets else BOX for cell in boxes]
    flat[player] = PLAYER_ON_TARGET if player in targets else PLAYER
    plan = None if targets <= boxes else solve(board)
    return None if plan is None or len(taken) + len(plan) > limit else plan


def plan_lengths(levels: Sequence[np.ndarray] | np.ndarray, budget: int) -> Int32[np.ndarray, " N"]:
    """Returns the number of actions of a shortest plan, -1 where none of at most `budget` actions solves the level."""
    plans = (_plan(explore(level, depth_limit=budget, stop_when_solved=True)) for level in levels)
    return np.array([-1 if plan is None else len(plan) for plan in plans], np.int32)


def random_success(levels: Sequence[np.ndarray] | np.ndarray, budget: int) -> Float64[np.ndarray, "N T"]:
    """Returns the exact probability that 0, 1, ... `budget` uniform random actions solve the level."""
    success = np.zeros((len(levels), budget + 1))
    for level, by_actions in zip(levels, success):
        graph = explore(level, depth_limit=budget)
        mass: np.ndarray = np.zeros(len(graph.solved))
        mass[0] = 1.0
        by_actions[0] = mass[graph.solved].sum()
        for actions in range(1, budget + 1):
            mass = np.bincount(graph.next.reshape(-1), np.repeat(mass / 4, 4), len(mass))
            by_actions[actions] = mass[graph.solved].sum()
    return success


def _targets_and_start(level: np.ndarray) -> tuple[frozenset[int], Position]:
    """The cells of the targets, and the position before the first action."""
    # On so few cells, loops are faster than calls of NumPy, which took half of the time of a search.
    codes = level.reshape(-1).tolist()
    targets, boxes = (
        frozenset(cell for cell, code in enumerate(codes) if code in wanted)
        for wanted in ((TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET), (BOX, BOX_ON_TARGET))
    )
    return targets, (next(cell for cell, code in enumerate(codes) if code in (PLAYER, PLAYER_ON_TARGET)), boxes)


def _neighbors(level: np.ndarray) -> list[list[int]]:
    """The free neighbor of each cell in each direction; -1 for a wall or the border."""
    # A last code, for the -1 beyond the border.
    codes = [*level.reshape(-1).tolist(), WALL]
    return [[-1 if codes[cell] == WALL else cell for cell in row] for row in _board_neighbors(*level.shape)]


@functools.cache
def _board_neighbors(height: int, width: int) -> list[list[int]]:
    cells = np.arange(height * width).reshape(height, width)
    return grid.neighbors(np.pad(cells, 1, constant_values=-1), DIRECTIONS).tolist()


def _move(ahead: list[list[int]], player: int, boxes: frozenset[int], direction: int) -> Position:
    cell = ahead[player][direction]
    if cell < 0:
        return player, boxes
    if cell not in boxes:
        return cell, boxes
    beyond = ahead[cell][direction]
    if beyond < 0 or beyond in boxes:
        return player, boxes
    return cell, (boxes - {cell}) | {beyond}
