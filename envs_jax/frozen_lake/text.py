"""Text of FrozenLake: the pieces that observations consist of, and the piece ids of an observation.

Level codes: 0 frozen, 1 hole, 2 goal, 3 start. Display codes: 0 frozen (the start too), 1 hole, 2 goal, 3 player,
4 player in a hole, 5 player on the goal. Shapes: `H`, `W` rows and columns of the board, `P` pieces of an observation.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from envs_jax.grid import cell_lists, packed, spell_grid

FROZEN, HOLE, GOAL, START = range(4)
"""Cell codes of a level, i8[H, W]."""

PLAYER, PLAYER_IN_HOLE, PLAYER_ON_GOAL = 3, 4, 5
"""Display codes in addition to frozen, hole and goal."""

SYMBOLS = ("_", "O", "G", "P", "X", "√")
"""Symbols by display code, as in RAGEN."""

MEANINGS = ("frozen", "hole", "goal", "you", "you in a hole", "you on the goal")

INSTRUCTION = (
    "You stand on a frozen lake. Reach the goal and do not step into a hole. The ice may be slippery: a move can carry "
    "you to the left or the right of the direction you chose. At the edge of the board you stay where you are. "
    "Answer with the moves to make, in order."
)


def make_describe(
    height: int, width: int, observation: str
) -> tuple[tuple[str, ...], tuple[int, ...], Callable[[jax.Array, jax.Array], jax.Array]]:
    """Builds the pieces of an environment and the function that describes a position with them.

    Args:
        height: Rows of the board.
        width: Columns of the board.
        observation: "grid" (one symbol per cell, newline between rows), "coord" (zero-based (row, column) pairs of
            start, goal, player and holes) or "grid_coord" (the pairs, a newline, the grid).

    Returns:
        The pieces; the most occurrences of each in one observation; a function from a level i8[H, W] and the player's
        cell bool[H, W] to piece ids i32[P], padded on the right. `P` is large enough for a board on which all cells but
        start and goal are holes.
    """
    pieces = [*SYMBOLS, "\n"]
    # A board has one goal and one player; one more newline separates the pairs from the grid.
    limits = [height * width, height * width, 1, 1, 1, 1, height - 1 + (observation == "grid_coord")]
    newline = len(SYMBOLS)

    def grid(level: jax.Array, player: jax.Array) -> jax.Array:
        return spell_grid(display_codes(level, player), newline)

    if observation == "grid":
        return tuple(pieces), tuple(limits), grid

    headings = (f"Board: {height} rows, {width} columns\nStart:", "\nGoal:", "\nYou:", "\nHoles:")
    of_lists, cells = cell_lists(len(pieces), headings, height, width)
    pieces += of_lists
    # A cell can be named twice: by its kind, and as the player's cell.
    limits += [*[1] * len(headings), len(headings), *[2] * (height * width)]

    def coord(level: jax.Array, player: jax.Array) -> jax.Array:
        lists = (level == START, 1), (level == GOAL, 1), (player, 1), (level == HOLE, height * width - 2)
        return jnp.concatenate([cells(i, mask, most) for i, (mask, most) in enumerate(lists)])

    def both(level: jax.Array, player: jax.Array) -> jax.Array:
        ids = [coord(level, player), jnp.array([newline], jnp.int32), grid(level, player)]
        return packed(jnp.concatenate(ids))

    return tuple(pieces), tuple(limits), coord if observation == "coord" else both


def display_codes(level: jax.Array, player: jax.Array) -> jax.Array:
    """Returns display codes i8[H, W] from a level i8[H, W] and the player's cell bool[H, W]."""
    board = jnp.where(level == START, FROZEN, level)
    return jnp.where(player, board + PLAYER, board).astype(jnp.int8)
