"""Text of FrozenLake: the pieces that observations consist of, and the piece ids of an observation.

Level codes: 0 frozen, 1 hole, 2 goal, 3 start. Display codes: 0 frozen (the start too), 1 hole, 2 goal, 3 player,
4 player in a hole, 5 player on the goal.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int8, Int32

from envs_jax.grid import board_text

MAX_SIDE = 64
"""Maximum numbers of rows and columns of a map."""

FROZEN, HOLE, GOAL, START = range(4)
"""Cell codes of a level, i8[H, W]."""

PLAYER = 3
"""Display code of the player on a frozen cell; in a hole and on the goal it is one and two more."""

DIRECTIONS = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""Row and column step of each action: left, down, right, up."""

SYMBOLS = ("_", "O", "G", "P", "X", "√")
"""Symbols by display code, as in RAGEN."""

MEANINGS = ("frozen", "hole", "goal", "you", "you in a hole", "you on the goal")

INSTRUCTION = (
    "You stand on a frozen lake. Reach the goal and do not step into a hole. The ice may be slippery: a move can carry "
    "you to the left or the right of the direction you chose. At the edge of the board you stay where you are. "
    "Answer with the moves to make, in order."
)

Describe = Callable[[Int8[Array, "H W"], Bool[Array, "H W"]], Int32[Array, " P"]]
"""(level, the player's cell) -> piece ids, padded on the right."""


# Kept, so that environments with the same text are equal, see `TextEnvironment.__eq__`.
@functools.lru_cache(maxsize=64)
def make_describe(height: int, width: int, observation: str) -> tuple[tuple[str, ...], tuple[int, ...], Describe]:
    """Returns the pieces, the most occurrences of each in one observation, and the function that describes a position.

    For the observations see `grid.board_text`; the lists are start, goal, player and holes. `P` is large enough for a
    board on which all cells but start and goal are holes.
    """
    headings = (f"Board: {height} rows, {width} columns\nStart:", "\nGoal:", "\nYou:", "\nHoles:")
    pieces, describe_board = board_text(SYMBOLS, headings, height, width, observation)
    # A board has one goal and one player; one more newline separates the lists from the grid.
    limits = [height * width, height * width, 1, 1, 1, 1, height - 1 + (observation == "grid_coord")]
    # A cell can be named twice: by its kind, and as the player's cell.
    limits += [*[1] * len(headings), len(headings), *[2] * (height * width)]

    def describe(level: jax.Array, player: jax.Array) -> jax.Array:
        lists = (level == START, 1), (level == GOAL, 1), (player, 1), (level == HOLE, height * width - 2)
        return describe_board(display_codes(level, player), [(i, *cells) for i, cells in enumerate(lists)])

    return tuple(pieces), tuple(limits[: len(pieces)]), describe


def display_codes(level: Int8[Array, "H W"], player: Bool[Array, "H W"]) -> Int8[Array, "H W"]:
    """Returns the display codes of a level and the player's cell."""
    board = jnp.where(level == START, FROZEN, level)
    return jnp.where(player, board + PLAYER, board).astype(jnp.int8)
