"""Exact results on the host: shortest plans, and success of the optimal and of the uniform random policy.

Plain Python and NumPy over the graph of reachable positions. It is independent of the environment's transition, and
tests compare the two. Level codes are those of `text`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envs_jax.sokoban.text import BOX, BOX_ON_TARGET, PLAYER, PLAYER_ON_TARGET, TARGET, WALL

MAX_POSITIONS = 2_000_000
"""Positions after which a search gives up."""

Position = tuple[int, frozenset[int]]


@dataclass(frozen=True)
class Graph:
    """The positions reachable from a level, in breadth-first order; the first one is the start.

    Attributes:
        next: i32[S, 4] position after each action; the position itself if it is solved or at the depth limit.
        depth: i32[S] fewest actions from the start.
        solved: bool[S] every target is covered; absorbing.
        parent: i32[S] a predecessor on a shortest path (-1 for the start).
        action: i32[S] the action from that predecessor.
    """

    next: np.ndarray
    depth: np.ndarray
    solved: np.ndarray
    parent: np.ndarray
    action: np.ndarray


def explore(level: np.ndarray, depth_limit: int | None = None, stop_when_solved: bool = False) -> Graph:
    """Searches the positions of a level, i8[H, W], breadth first.

    Args:
        level: Cell codes; cells outside the board count as wall.
        depth_limit: Positions that need this many actions are not expanded.
        stop_when_solved: Stop at the first solved position.

    Raises:
        ValueError: more than `MAX_POSITIONS` positions are reachable.
    """
    level = np.asarray(level)
    ahead = _neighbors(level)
    flat = level.reshape(-1)
    targets = frozenset(np.flatnonzero(np.isin(flat, (TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET))).tolist())
    boxes = frozenset(np.flatnonzero(np.isin(flat, (BOX, BOX_ON_TARGET))).tolist())
    player = int(np.flatnonzero(np.isin(flat, (PLAYER, PLAYER_ON_TARGET)))[0])

    positions: list[Position] = [(player, boxes)]
    index = {positions[0]: 0}
    following, depth, parent, action, solved = [], [0], [-1], [-1], [targets <= boxes]
    cursor = 0
    while cursor < len(positions) and not (stop_when_solved and solved[-1]):
        player, boxes = positions[cursor]
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
        cursor += 1
        if len(positions) > MAX_POSITIONS:
            raise ValueError(
                f"the level has more than {MAX_POSITIONS} reachable positions; expected fewer: use a smaller board, "
                "fewer boxes or a depth limit"
            )
    following += [[i] * 4 for i in range(cursor, len(positions))]
    return Graph(
        next=np.array(following, np.int32),
        depth=np.array(depth, np.int32),
        solved=np.array(solved),
        parent=np.array(parent, np.int32),
        action=np.array(action, np.int32),
    )


def solve(level: np.ndarray) -> np.ndarray | None:
    """Returns a shortest plan as action ids, i32[L] (empty if the level is solved), or None if there is none.

    Raises:
        ValueError: more than `MAX_POSITIONS` positions are reachable.
    """
    graph = explore(level, stop_when_solved=True)
    if not graph.solved.any():
        return None
    plan, position = [], int(np.argmax(graph.solved))
    while position > 0:
        plan.append(graph.action[position])
        position = graph.parent[position]
    return np.array(plan[::-1], np.int32)


def optimal_success(levels: Sequence[np.ndarray] | np.ndarray, budget: int) -> np.ndarray:
    """Returns f64[N]: 1.0 if a plan of at most `budget` actions solves the level, else 0.0."""
    graphs = (explore(level, depth_limit=budget, stop_when_solved=True) for level in levels)
    return np.array([float(graph.solved.any()) for graph in graphs], np.float64)


def random_success(levels: Sequence[np.ndarray] | np.ndarray, budget: int) -> np.ndarray:
    """Returns f64[N]: the probability that `budget` uniform random actions solve the level.

    Exact: the distribution over positions is propagated action by action; solved positions are absorbing.
    """
    success = []
    for level in levels:
        graph = explore(level, depth_limit=budget)
        mass: np.ndarray = np.zeros(len(graph.depth))
        mass[0] = 1.0
        for _ in range(budget):
            mass = np.bincount(graph.next.reshape(-1), np.repeat(mass / 4, 4), len(mass))
        success.append(mass[graph.solved].sum())
    return np.array(success, np.float64)


def _neighbors(level: np.ndarray) -> list[list[int]]:
    """The free neighbor of each cell up, down, left and right; -1 for a wall or the border."""
    height, width = level.shape
    table = []
    for row in range(height):
        for column in range(width):
            around = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
            table.append(
                [r * width + c if 0 <= r < height and 0 <= c < width and level[r, c] != WALL else -1 for r, c in around]
            )
    return table


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
