"""Text of a Sokoban board: the pieces that observations consist of, and the piece ids of an observation.

Cell codes: 0 wall, 1 floor, 2 target, 3 box on target, 4 box, 5 player, 6 player on target.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int8, Int32

from envs_jax.errors import BadValue
from envs_jax.grid import board_text

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)
"""Cell codes of a board or level, i8[H, W]."""

DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Row and column step of each action: up, down, left, right."""

SYMBOLS = ("#", "_", "O", "√", "X", "P", "S")
"""Default symbols, by cell code."""

MEANINGS = ("wall", "floor", "target", "box on target", "box", "you", "you on target")

INSTRUCTION = (
    "This is Sokoban and you are the player. Move every box onto a target. Walking into a box pushes it one cell; "
    "it moves only if the cell behind it is free. Boxes cannot be pulled, nor pushed through walls or other boxes. "
    "Answer with the moves to make, in order."
)


Describe = Callable[[Int8[Array, "H W"]], Int32[Array, " P"]]
"""Cell codes -> piece ids, padded on the right."""


# Kept, so that environments with the same text are equal, see `TextEnvironment.__eq__`.
@functools.lru_cache(maxsize=64)
def make_describe(
    height: int, width: int, boxes: int, symbols: tuple[str, ...], observation: str
) -> tuple[tuple[str, ...], tuple[int, ...], Describe]:
    """Returns the pieces, the most occurrences of each in one observation, and the function that describes a board.

    `symbols` are by cell code. For the observations see `grid.board_text`; the lists are targets, boxes (at most
    `boxes`) and the player. Raises a `ValueError` if the symbols or the observation are not usable.
    """
    if len(symbols) != 7 or len(set(symbols)) != 7 or any(not s or "\n" in s for s in symbols):
        raise BadValue(
            f"vocabulary is {symbols!r}; expected 7 different symbols without newlines, "
            f"for {', '.join(MEANINGS)}: for example {SYMBOLS!r}",
            "vocabulary",
            symbols,
        )
    if len(set(map(len, symbols))) > 1:
        raise BadValue(
            f"vocabulary is {symbols!r}; expected 7 symbols of one length, so that a row is read in one way only",
            "vocabulary",
            symbols,
        )
    headings = (
        f"Board: {height} rows, {width} columns\nEmpty targets:",
        "\nBoxes off target:",
        "\nBoxes on target:",
        "\nYou:",
        "\nYou, on a target:",
    )
    pieces, describe_board = board_text(symbols, headings, height, width, observation)
    limits = [*[height * width] * (len(symbols) + 1), *[1] * len(headings), 3, *[1] * (height * width)]

    def describe(codes: jax.Array) -> jax.Array:
        lists = [(i, codes == cell, boxes) for i, cell in enumerate((TARGET, BOX, BOX_ON_TARGET))]
        return describe_board(codes, [*lists, (3 + jnp.any(codes == PLAYER_ON_TARGET), codes >= PLAYER, 1)])

    return tuple(pieces), tuple(limits[: len(pieces)]), describe
