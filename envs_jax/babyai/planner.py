"""Shortest paths over (cell, heading) among the cells in view, with the order of ties of AgentGym's planner.

AgentGym searches breadth first, tries forward, left and right in this order, and puts a node into the queue once for
each way to it. So the nodes of one depth are queued in the lexicographic order of the action sequences that lead to
them. The search stops at the first goal in the queue, which is the one with the lexicographically smallest shortest
path; but the predecessor of a node is the last that found it, so that the path returned is the lexicographically
largest shortest path to that goal.

Nodes are bits: a board is u8[4, 8, 8 bits], for the heading relative to the agent's, the row (0 is behind the agent,
1 its own), and the column (3 is its own). Shapes: `D` = `MAX_DEPTH` + 1 depths.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int8, Int32, UInt8

from envs_jax.babyai.codes import BOX, COLORS, FORWARD, KEY, LEFT, OBJECT, RIGHT, WALL
from envs_jax.babyai.view import MIDDLE, SIZE
from envs_jax.batching import by_length, on_rows

ROWS = SIZE + 1
MAX_DEPTH = 63
"""Longest path; a longer one counts as none."""

AHEAD, TO_RIGHT, BEHIND, TO_LEFT = range(4)
"""Headings relative to the agent's."""

Board = UInt8[Array, "*B 4 8"]


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
    up, right, down, left = (board[..., heading, :] for heading in (range(4) if sign == 1 else (2, 3, 0, 1)))
    nothing = jnp.zeros_like(up[..., :1])
    moved = (
        jnp.concatenate([nothing, up[..., :-1]], axis=-1),
        right << 1,
        jnp.concatenate([down[..., 1:], nothing], axis=-1),
        left >> 1,
    )
    return jnp.stack(moved if sign == 1 else (moved[2], moved[3], moved[0], moved[1]), axis=-2)


def _turns(board: Board) -> Board:
    return jnp.roll(board, 1, axis=-2) | jnp.roll(board, -1, axis=-2)


def _agent_node() -> np.ndarray:
    node = np.zeros((4, ROWS), np.uint8)
    node[AHEAD, 1] = 1 << MIDDLE
    return node


_START = _agent_node()


@on_rows
def reached(free: UInt8[Array, "B 8"]) -> UInt8[Array, "B 4 8"]:
    """Returns the nodes to which a path leads."""

    def grow(carry: tuple) -> tuple:
        found, frontier, depth = carry
        frontier = _grow(frontier, found, free)
        return found | frontier, frontier, depth + 1

    first = jnp.broadcast_to(jnp.asarray(_START), (free.shape[0], 4, ROWS))
    going = lambda carry: jnp.any(carry[1] != 0) & (carry[2] <= MAX_DEPTH)  # noqa: E731
    return jax.lax.while_loop(going, grow, (first, first, jnp.int32(1)))[0]


def _grow(frontier: Board, found: Board, free: UInt8[Array, "B 8"]) -> Board:
    return (_step(frontier) & free[:, None] | _turns(frontier)) & ~found


def facing(board: UInt8[Array, "4 8"]) -> UInt8[Array, " 8"]:
    """Returns the cells that some node faces."""
    ahead = _step(board)
    return ahead[0] | ahead[1] | ahead[2] | ahead[3]


def goal_nodes(row: Int[Array, ""], column: Int[Array, ""], arrive: Bool[Array, ""]) -> UInt8[Array, "4 8"]:
    """Returns the nodes at a cell of the board if `arrive`, else those that face it."""
    cell = jnp.where(jnp.arange(ROWS) == row, 1 << column, 0).astype(jnp.uint8)
    there = jnp.broadcast_to(cell, (4, ROWS))
    return jnp.where(arrive, there, _step(there, -1))


@on_rows
def path(free: UInt8[Array, "B 8"], goals: UInt8[Array, "B 4 8"]) -> tuple[Int8[Array, "B D"], Int32[Array, " B"]]:
    """Returns the primitive actions to the goal that AgentGym's planner takes, and their number; 0 without a path."""
    rows = free.shape[0]
    # Rows without a goal search nothing.
    wanted = jnp.any(goals != 0, axis=(1, 2))
    first = jnp.where(wanted[:, None, None], jnp.asarray(_START), 0).astype(jnp.uint8)

    def grow(carry: tuple) -> tuple:
        layers, found, frontier, depth = carry
        # A row whose goal has been found ends here.
        frontier = jnp.where(jnp.any(frontier & goals != 0, axis=(1, 2), keepdims=True), 0, frontier)
        frontier = _grow(frontier, found, free)
        return layers.at[depth].set(frontier), found | frontier, frontier, depth + 1

    layers = jnp.zeros((MAX_DEPTH + 1, rows, 4, ROWS), jnp.uint8).at[0].set(first)
    going = lambda carry: jnp.any(carry[2] != 0) & (carry[3] <= MAX_DEPTH)  # noqa: E731
    layers = jax.lax.while_loop(going, grow, (layers, first, first, jnp.int32(1)))[0]
    hits = jnp.any(layers & goals != 0, axis=(2, 3))
    depth = jnp.argmax(hits, axis=0).astype(jnp.int32)
    actions = by_length(_shortest, depth, (jnp.moveaxis(layers, 0, 1), goals, depth))
    return actions, depth


def _shortest(
    layers: UInt8[Array, "B D 4 8"], goals: UInt8[Array, "B 4 8"], depth: Int32[Array, " B"]
) -> Int8[Array, "B D"]:
    layers = jnp.moveaxis(layers, 1, 0)
    last = jnp.take_along_axis(layers, depth[None, :, None, None], axis=0)[0] & goals
    several = jnp.sum(jax.lax.population_count(last), axis=(1, 2)) > 1
    depth_of_choice = jnp.where(several, depth, 0)
    chosen, _ = _walk(_between(layers, last, depth_of_choice), depth_of_choice, last=False)
    goal = jnp.where(several[:, None, None], chosen, last)
    return _walk(_between(layers, goal, depth), depth, last=True)[1]


def _between(
    layers: UInt8[Array, "D B 4 8"], last: UInt8[Array, "B 4 8"], depth: Int32[Array, " B"]
) -> UInt8[Array, "D B 4 8"]:
    """Returns the nodes at each depth that are on a shortest path to the last ones, which are at a depth."""

    def shrink(carry: tuple) -> tuple:
        kept, ahead, level = carry
        back = layers[level] & (_step(ahead, -1) | _turns(ahead))
        back = jnp.where((level == depth)[:, None, None], last, back)
        return kept.at[level].set(back), back, level - 1

    nothing = jnp.zeros_like(last)
    first = jnp.zeros_like(layers), nothing, jnp.max(depth)
    return jax.lax.while_loop(lambda carry: carry[2] >= 0, shrink, first)[0]


def _walk(
    kept: UInt8[Array, "D B 4 8"], depth: Int32[Array, " B"], *, last: bool
) -> tuple[UInt8[Array, "B 4 8"], Int8[Array, "B D"]]:
    """Walks from the agent over nodes of each depth, taking the first or last possible action.

    Returns the node at the end and the actions.
    """
    rows = depth.shape[0]

    def step(carry: tuple) -> tuple:
        node, actions, level = carry
        options = (
            (FORWARD, _step(node)),
            (LEFT, jnp.roll(node, -1, axis=1)),
            (RIGHT, jnp.roll(node, 1, axis=1)),
        )
        ahead = kept[level + 1]
        action, chosen = jnp.zeros(rows, jnp.int8), node
        for name, option in options if last else options[::-1]:
            possible = jnp.any(option & ahead != 0, axis=(1, 2)) & (level < depth)
            action = jnp.where(possible, name, action).astype(jnp.int8)
            chosen = jnp.where(possible[:, None, None], option, chosen)
        return chosen, actions.at[level].set(action), level + 1

    node = jnp.broadcast_to(jnp.asarray(_START), (rows, 4, ROWS))
    first = node, jnp.zeros((MAX_DEPTH + 1, rows), jnp.int8), jnp.int32(0)
    node, actions, _ = jax.lax.while_loop(lambda carry: carry[2] < jnp.max(depth), step, first)
    return node, actions.T
