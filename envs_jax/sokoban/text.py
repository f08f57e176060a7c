"""Text of a Sokoban board: the pieces that observations consist of, and the piece ids of an observation.

Cell codes: 0 wall, 1 floor, 2 target, 3 box on target, 4 box, 5 player, 6 player on target.
Shapes: `H`, `W` rows and columns of the board, `P` pieces of an observation.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.grid import cell_lists, packed, spell_grid

WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)
"""Cell codes of a board or level, i8[H, W]."""

SYMBOLS = ("#", "_", "O", "√", "X", "P", "S")
"""Default symbols, by cell code."""

MEANINGS = ("wall", "floor", "target", "box on target", "box", "you", "you on target")

INSTRUCTION = (
    "This is Sokoban and you are the player. Move every box onto a target. Walking into a box pushes it one cell; "
    "it moves only if the cell behind it is free. Boxes cannot be pulled, nor pushed through walls or other boxes. "
    "Answer with the moves to make, in order."
)


def make_describe(
    height: int, width: int, boxes: int, symbols: tuple[str, ...], observation: str
) -> tuple[tuple[str, ...], tuple[int, ...], Callable[[jax.Array], jax.Array]]:
    """Builds the pieces of an environment and the function that describes a board with them.

    Args:
        height: Rows of the board.
        width: Columns of the board.
        boxes: The most boxes of a level; it determines the length of the coordinate lists.
        symbols: Seven symbols by cell code.
        observation: "grid" (one symbol per cell, newline between rows), "coord" (zero-based (row, column) lists
            without the walls) or "grid_coord" (the lists, a newline, the grid).

    Returns:
        The pieces; the most occurrences of each in one observation; a function from cell codes i8[H, W] to piece ids
        i32[P], padded on the right.
    """
    pieces = [*symbols, "\n"]
    limits = [height * width] * len(pieces)
    newline = len(symbols)
    if observation == "grid":
        return tuple(pieces), tuple(limits), lambda codes: spell_grid(codes, newline)

    headings = (
        f"Board: {height} rows, {width} columns\nEmpty targets:",
        "\nBoxes off target:",
        "\nBoxes on target:",
        "\nYou:",
        "\nYou, on a target:",
    )
    of_lists, cells = cell_lists(len(pieces), headings, height, width)
    pieces += of_lists
    limits += [*[1] * len(headings), 3, *[1] * (height * width)]

    def describe(codes: jax.Array) -> jax.Array:
        lists = [cells(i, codes == cell, boxes) for i, cell in enumerate((TARGET, BOX, BOX_ON_TARGET))]
        ids = jnp.concatenate([*lists, cells(3 + jnp.any(codes == PLAYER_ON_TARGET), codes >= PLAYER, 1)])
        if observation == "grid_coord":
            ids = jnp.concatenate([ids, jnp.array([newline], jnp.int32), spell_grid(codes, newline)])
        return packed(ids)

    return tuple(pieces), tuple(limits), describe


def check_symbols(symbols: tuple[str, ...]) -> None:
    """Checks a vocabulary.

    Raises:
        ValueError: it is not seven different, non-empty symbols without newlines.
    """
    if len(symbols) != 7 or len(set(symbols)) != 7 or any(not s or "\n" in s for s in symbols):
        raise ValueError(
            f"vocabulary is {symbols!r}; expected 7 different symbols without newlines, "
            f"for {', '.join(MEANINGS)}: for example {SYMBOLS!r}"
        )


def render_codes(codes: np.ndarray) -> str:
    """Returns the grid text of cell codes i8[H, W] in the default symbols, on the host."""
    return "\n".join("".join(SYMBOLS[code] for code in row) for row in np.asarray(codes).tolist())
