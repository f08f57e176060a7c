"""Shortest paths over (cell, heading) among the cells in view, with the order of ties of AgentGym's planner.

AgentGym searches breadth first, tries forward, left and right in this order, and puts a node into the queue once for
each way to it. So the nodes of one depth are queued in the lexicographic order of the action sequences that lead to
them. The search stops at the first goal in the queue, which is the one with the lexicographically smallest shortest
path; but the predecessor of a node is the last that found it, so that the path returned is the lexicographically
largest shortest path to that goal.

Nodes are bits: a board is u8[4, 8, 8 bits], for the heading relative to the agent's, the row (0 is behind the agent,
1 its own), and the column (3 is its own). Shapes: `D` = `MAX_DEPTH` + 1 depths.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int8, UInt8

from envs_jax.babyai.codes import BOX, COLORS, FORWARD, KEY, LEFT, OBJECT, RIGHT, WALL
from envs_jax.babyai.view import MIDDLE, SIZE

ROWS = SIZE + 1
MAX_DEPTH = 63
"""Longest path; a longer one counts as none."""

AHEAD, TO_RIGHT, BEHIND, TO_LEFT = range(4)
"""Headings relative to the agent's."""

Board = UInt8[Array, "4 8"]


class Search(NamedTuple):
    """A breadth-first search from the agent: the nodes at each depth, and all of them."""

    layers: UInt8[Array, "D 4 8"]
    reached: Board


def free_cells(view: Int8[Array, "7 7"], heading: Int[Array, ""]) -> UInt8[Array, " 8"]:
    """Returns the cells that paths may enter: in range, and not seen to hold a wall, key, ball or box.

    The range is the view; where it extends towards smaller coordinates of the grid, it has one more row or column.
    """
    cells = view.at[SIZE - 1, MIDDLE].set(0)
    solid = (cells == WALL) | (cells >= OBJECT + KEY * COLORS) & (cells < OBJECT + (BOX + 1) * COLORS)
    bits = jnp.sum(solid.astype(jnp.int32) << np.arange(SIZE), axis=1)[::-1]
    row_behind, extra_column = heading <= 1, (heading == 1) | (heading == 2)
    columns = (1 << SIZE) - 1 | extra_column.astype(jnp.int32) << SIZE
    rows = columns & ~bits
    return jnp.concatenate([jnp.where(row_behind, columns, 0)[None], rows]).astype(jnp.uint8)


def _step(board: Board, sign: int = 1) -> Board:
    """Moves every node one cell in its heading, or back with `sign` -1."""
    nothing = jnp.zeros((1,), jnp.uint8)
    up, right, down, left = (board[heading] for heading in (range(4) if sign == 1 else (2, 3, 0, 1)))
    moved = (
        jnp.concatenate([nothing, up[:-1]]),
        right << 1,
        jnp.concatenate([down[1:], nothing]),
        left >> 1,
    )
    return jnp.stack(moved if sign == 1 else (moved[2], moved[3], moved[0], moved[1]))


def _turns(board: Board) -> Board:
    return jnp.roll(board, 1, axis=0) | jnp.roll(board, -1, axis=0)


def agent_node() -> Board:
    """Returns the node of the agent."""
    return jnp.zeros((4, ROWS), jnp.uint8).at[AHEAD, 1].set(1 << MIDDLE)


def search(free: UInt8[Array, " 8"]) -> Search:
    """Finds the nodes at every depth."""

    def grow(carry: tuple) -> tuple:
        layers, reached, frontier, depth = carry
        found = (_step(frontier) & free | _turns(frontier)) & ~reached
        return layers.at[depth].set(found), reached | found, found, depth + 1

    first = agent_node()
    layers = jnp.zeros((MAX_DEPTH + 1, 4, ROWS), jnp.uint8).at[0].set(first)
    layers, reached, _, _ = jax.lax.while_loop(
        lambda carry: jnp.any(carry[2] != 0) & (carry[3] <= MAX_DEPTH), grow, (layers, first, first, jnp.int32(1))
    )
    return Search(layers, reached)


def facing(reached: Board) -> UInt8[Array, " 8"]:
    """Returns the cells that some node faces."""
    ahead = _step(reached)
    return ahead[0] | ahead[1] | ahead[2] | ahead[3]


def goal_nodes(row: Int[Array, ""], column: Int[Array, ""], arrive: Bool[Array, ""]) -> Board:
    """Returns the nodes at a cell of the board if `arrive`, else those that face it."""
    cell = jnp.where(jnp.arange(ROWS) == row, 1 << column, 0).astype(jnp.uint8)
    there = jnp.broadcast_to(cell, (4, ROWS))
    return jnp.where(arrive, there, _step(there, -1))


def path(found: Search, goals: Board) -> tuple[Int8[Array, " D"], Int[Array, ""], Bool[Array, ""]]:
    """Returns the primitive actions to the goal that AgentGym's planner takes, their number, and whether there are any.

    Without a path the number is 0.
    """
    hits = jnp.any(found.layers & goals != 0, axis=(1, 2))
    depth, exists = jnp.argmax(hits), jnp.any(hits)
    goal, _ = _walk(_between(found.layers, goals, depth), depth, last=False)
    _, actions = _walk(_between(found.layers, goal, depth), depth, last=True)
    return actions, depth, exists


def _between(layers: UInt8[Array, "D 4 8"], goals: Board, depth: Int[Array, ""]) -> UInt8[Array, "D 4 8"]:
    """Returns the nodes at each depth that are on a shortest path to goals at a depth."""

    def shrink(carry: tuple) -> tuple:
        kept, ahead, level = carry
        back = layers[level] & (_step(ahead, -1) | _turns(ahead))
        return kept.at[level].set(back), back, level - 1

    last = layers[depth] & goals
    kept = jnp.zeros_like(layers).at[depth].set(last)
    return jax.lax.while_loop(lambda carry: carry[2] >= 0, shrink, (kept, last, depth - 1))[0]


def _walk(kept: UInt8[Array, "D 4 8"], depth: Int[Array, ""], *, last: bool) -> tuple[Board, Int8[Array, " D"]]:
    """Walks from the agent over nodes of each depth, taking the first or last possible action.

    Returns the node at the end and the actions.
    """

    def step(carry: tuple) -> tuple:
        node, actions, level = carry
        options = (
            (FORWARD, _step(node)),
            (LEFT, jnp.roll(node, -1, axis=0)),
            (RIGHT, jnp.roll(node, 1, axis=0)),
        )
        action, chosen = jnp.int8(0), node
        for name, option in options if last else options[::-1]:
            possible = jnp.any(option & kept[level + 1] != 0)
            action, chosen = jnp.where(possible, name, action).astype(jnp.int8), jnp.where(possible, option, chosen)
        return chosen, actions.at[level].set(action), level + 1

    first = agent_node(), jnp.zeros(MAX_DEPTH + 1, jnp.int8), jnp.int32(0)
    node, actions, _ = jax.lax.while_loop(lambda carry: carry[2] < depth, step, first)
    return node, actions
