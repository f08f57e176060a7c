"""What the agent sees: 7x7 cells ahead of it, without what walls and closed doors hide."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int8

from envs_jax.babyai.codes import CLOSED_DOOR, COLORS, DIRECTIONS, EMPTY, OBJECT, UNSEEN, WALL
from envs_jax.babyai.state import World

SIZE = 7
MIDDLE = SIZE // 2
"""Column of the agent, which is in the last row."""

_FRONT = np.arange(SIZE - 1, -1, -1)[:, None] + np.zeros((SIZE, SIZE), np.int32)
_SIDE = np.arange(SIZE)[None] - MIDDLE + np.zeros((SIZE, SIZE), np.int32)


def _spread(lit: int, opaque: int) -> tuple[int, int]:
    """Spreads light in one row, from left to right and back; returns it, and the light in the row ahead."""
    ahead = 0
    for columns, step in ((range(SIZE - 1), 1), (range(SIZE - 1, 0, -1), -1)):
        for column in columns:
            if lit >> column & 1 and not opaque >> column & 1:
                lit |= 1 << column + step
                ahead |= 1 << column | 1 << column + step
    return lit, ahead


def _tables() -> np.ndarray:
    rows = [_spread(lit, opaque) for lit in range(1 << SIZE) for opaque in range(1 << SIZE)]
    return np.array([lit | ahead << SIZE for lit, ahead in rows], np.int32)


_LIGHT = _tables()
"""By `lit << SIZE | opaque`: bits of a row, each column a bit, then those of the row ahead."""


def ahead_of(world: World) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """Returns column and row of the cell that the agent faces."""
    step = jnp.asarray(DIRECTIONS)[world.heading]
    return world.x + step[0], world.y + step[1]


def cells_of(world: World) -> tuple[Int[Array, "7 7"], Int[Array, "7 7"]]:
    """Returns rows and columns in the grid, which they may be outside of, of the cells ahead."""
    forward, right = jnp.asarray(DIRECTIONS)[world.heading], jnp.asarray(DIRECTIONS)[(world.heading + 1) % 4]
    columns = world.x + _FRONT * forward[0] + _SIDE * right[0]
    return world.y + _FRONT * forward[1] + _SIDE * right[1], columns


def look(world: World) -> Int8[Array, "7 7"]:
    """Returns the cells ahead: the far row first, unseen ones as `UNSEEN`, the agent's own as what it carries.

    This is MiniGrid's `gen_obs`, as cell codes and transposed.
    """
    height, width = world.cells.shape
    rows, columns = cells_of(world)
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    cells = world.cells.reshape(-1)[jnp.where(inside, rows * width + columns, 0)]
    cells = jnp.where(inside, cells, WALL).astype(jnp.int8)
    seen = jnp.where(_visible(cells), cells, UNSEEN)
    carried = jnp.where(world.carrying >= 0, world.slot_cells[world.carrying], EMPTY)
    return seen.at[SIZE - 1, MIDDLE].set(carried.astype(jnp.int8))


def _visible(cells: Int8[Array, "7 7"]) -> Bool[Array, "7 7"]:
    """Light spreads from the agent row by row; a table gives what it does in a row."""
    opaque = (cells == WALL) | (cells >= OBJECT + CLOSED_DOOR * COLORS)
    bits = jnp.sum(opaque.astype(jnp.int32) << np.arange(SIZE), axis=1)
    table, lit, rows = jnp.asarray(_LIGHT), jnp.int32(1 << MIDDLE), []
    for row in reversed(range(SIZE)):
        entry = table[lit << SIZE | bits[row]]
        rows.append(entry & (1 << SIZE) - 1)
        lit = entry >> SIZE
    return (jnp.stack(rows[::-1])[:, None] >> np.arange(SIZE) & 1).astype(bool)
