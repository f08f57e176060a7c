"""How a frozen lake is put into words: the pieces an observation can utter and the ids that spell it.

Level codes: 0 frozen, 1 hole, 2 goal, 3 start. Display codes: 0 frozen (the start too), 1 hole, 2 goal, 3 player,
4 player in a hole, 5 player on the goal. Letters: `H`, `W` rows and columns of the board, `P` pieces of an observation.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from envs_jax.environment import NO_PIECE

FROZEN, HOLE, GOAL, START = range(4)
"""Cell codes of a level, i8[H, W]."""

PLAYER, PLAYER_IN_HOLE, PLAYER_ON_GOAL = 3, 4, 5
"""Display codes beyond frozen, hole and goal."""

SYMBOLS = ("_", "O", "G", "P", "X", "√")
"""Symbols by display code, as in RAGEN."""

MEANINGS = ("frozen", "hole", "goal", "you", "you in a hole", "you on the goal")

INSTRUCTION = (
    "You stand on a frozen lake. Reach the goal and do not step into a hole. The ice may be slippery: a move can carry "
    "you to the left or the right of the direction you chose. At the edge of the board you stay where you are. "
    "Answer with the moves to make, in order."
)

FORMATS = ("grid", "coord", "grid_coord")


def make_describe(
    height: int, width: int, observation: str
) -> tuple[tuple[str, ...], tuple[int, ...], Callable[[jax.Array, jax.Array], jax.Array]]:
    """Builds the pieces of an environment and the function that spells a position with them.

    Args:
        height: Rows of the board.
        width: Columns of the board.
        observation: "grid" (one symbol per cell, newline between rows), "coord" (zero-based (row, column) pairs of
            start, goal, player and holes) or "grid_coord" (the pairs, a newline, the grid).

    Returns:
        The pieces; the most occurrences of each in one observation; a function from a level i8[H, W] and the player's
        cell bool[H, W] to piece ids i32[P], padded on the right. `P` allows for a board that is all holes but for start
        and goal.
    """
    pieces = [*SYMBOLS, "\n"]
    # A board has one goal, and one cell where the player stands; a newline more parts the pairs from the grid.
    limits = [height * width, height * width, 1, 1, 1, 1, height - 1 + (observation == "grid_coord")]
    newline = jnp.full((height, 1), pieces.index("\n"), jnp.int32)

    def grid(level: jax.Array, player: jax.Array) -> jax.Array:
        codes = display_codes(level, player).astype(jnp.int32)
        return jnp.concatenate([codes, newline], axis=1).reshape(-1)[:-1]

    if observation == "grid":
        return tuple(pieces), tuple(limits), grid

    headings = (f"Board: {height} rows, {width} columns\nStart:", "\nGoal:", "\nYou:", "\nHoles:")
    first_heading, none = len(pieces), len(pieces) + len(headings)
    first_cell = none + 1
    pieces += [*headings, " none", *(f" ({row},{column})" for row in range(height) for column in range(width))]
    # A cell is named as what it is and, once more, as where the player stands.
    limits += [*[1] * len(headings), len(headings), *[2] * (height * width)]

    def cells(heading: int, mask: jax.Array, most: int) -> jax.Array:
        """Spells a heading and the cells of a mask in reading order: i32[1 + most]."""
        index = jnp.nonzero(mask.reshape(-1), size=most, fill_value=-1)[0]
        spelled = jnp.where(index >= 0, first_cell + index, NO_PIECE)
        spelled = spelled.at[0].set(jnp.where(index[0] >= 0, spelled[0], none))
        return jnp.concatenate([jnp.array([first_heading + heading]), spelled]).astype(jnp.int32)

    def coord(level: jax.Array, player: jax.Array) -> jax.Array:
        lists = (level == START, 1), (level == GOAL, 1), (player, 1), (level == HOLE, height * width - 2)
        return jnp.concatenate([cells(i, mask, most) for i, (mask, most) in enumerate(lists)])

    def both(level: jax.Array, player: jax.Array) -> jax.Array:
        ids = jnp.concatenate([coord(level, player), newline[0], grid(level, player)])
        return ids[jnp.argsort(ids == NO_PIECE, stable=True)]

    return tuple(pieces), tuple(limits), coord if observation == "coord" else both


def display_codes(level: jax.Array, player: jax.Array) -> jax.Array:
    """Returns what is seen, display codes i8[H, W], of a level i8[H, W] and the player's cell bool[H, W]."""
    board = jnp.where(level == START, FROZEN, level)
    return jnp.where(player, board + PLAYER, board).astype(jnp.int8)
