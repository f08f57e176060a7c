"""How a Sokoban board is put into words: the pieces an observation can utter and the ids that spell it.

Cell codes: 0 wall, 1 floor, 2 target, 3 box on target, 4 box, 5 player, 6 player on target.
Letters: `H`, `W` rows and columns of the board, `P` pieces of an observation.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.environment import NO_PIECE

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

FORMATS = ("grid", "coord", "grid_coord")


def make_describe(
    height: int, width: int, boxes: int, symbols: tuple[str, ...], observation: str
) -> tuple[tuple[str, ...], Callable[[jax.Array], jax.Array]]:
    """Builds the pieces of an environment and the function that spells a board with them.

    Args:
        height: Rows of the board.
        width: Columns of the board.
        boxes: The most boxes a level can hold; it fixes the length of the coordinate lists.
        symbols: Seven symbols by cell code.
        observation: "grid" (one symbol per cell, newline between rows), "coord" (zero-based (row, column) lists
            without the walls) or "grid_coord" (the lists, a newline, the grid).

    Returns:
        The pieces, and a function from cell codes i8[H, W] to piece ids i32[P], padded on the right.
    """
    pieces = [*symbols, "\n"]

    def piece(text: str) -> int:
        if text not in pieces:
            pieces.append(text)
        return pieces.index(text)

    newline = piece("\n")

    def grid(codes: jax.Array) -> jax.Array:
        ends = jnp.full((height, 1), newline, jnp.int32)
        return jnp.concatenate([codes.astype(jnp.int32), ends], axis=1).reshape(-1)[:-1]

    if observation == "grid":
        return tuple(pieces), grid

    title = jnp.array([piece(f"Board: {height} rows, {width} columns\n")], jnp.int32)
    number = jnp.array([piece(str(i)) for i in range(max(height, width))], jnp.int32)
    opening, inner, closing, between, none = (piece(text) for text in ("(", ",", ")", " ", "none"))
    lists = [
        ("Empty targets: ", (TARGET,), boxes),
        ("Boxes off target: ", (BOX,), boxes),
        ("Boxes on target: ", (BOX_ON_TARGET,), boxes),
    ]
    headings = [piece(heading) for heading, _, _ in lists]
    you, you_on_target = piece("You: "), piece("You, on a target: ")

    def cells(mask: jax.Array, most: int) -> jax.Array:
        """Spells the cells of a mask in reading order, "none" where there is none: i32[6 * most]."""
        index = jnp.nonzero(mask.reshape(-1), size=most, fill_value=-1)[0]
        row, column = index // width, index % width
        spelled = jnp.stack(
            [
                jnp.where(jnp.arange(most) > 0, between, NO_PIECE),
                jnp.full(most, opening),
                number[row],
                jnp.full(most, inner),
                number[column],
                jnp.full(most, closing),
            ],
            axis=1,
        )
        spelled = jnp.where(index[:, None] >= 0, spelled, NO_PIECE).reshape(-1)
        return spelled.at[0].set(jnp.where(index[0] < 0, none, spelled[0])).astype(jnp.int32)

    def coord(codes: jax.Array) -> jax.Array:
        parts = [title]
        for heading, (_, wanted, most) in zip(headings, lists):
            mask = jnp.isin(codes, jnp.array(wanted, jnp.int8))
            parts += [jnp.array([heading], jnp.int32), cells(mask, most), jnp.array([newline], jnp.int32)]
        on_target = jnp.any(codes == PLAYER_ON_TARGET)
        parts += [jnp.where(on_target, you_on_target, you)[None].astype(jnp.int32), cells(codes >= PLAYER, 1)]
        return jnp.concatenate(parts)

    def describe(codes: jax.Array) -> jax.Array:
        ids = coord(codes)
        if observation == "grid_coord":
            ids = jnp.concatenate([ids, jnp.array([newline], jnp.int32), grid(codes)])
        return ids[jnp.argsort(ids == NO_PIECE, stable=True)]

    return tuple(pieces), describe


def check_symbols(symbols: tuple[str, ...]) -> None:
    """Checks a vocabulary.

    Raises:
        ValueError: it does not hold seven different, non-empty symbols free of newlines.
    """
    if len(symbols) != 7 or len(set(symbols)) != 7 or any(not s or "\n" in s for s in symbols):
        raise ValueError(
            f"vocabulary is {symbols!r}; expected 7 different symbols without newlines, "
            f"for {', '.join(MEANINGS)}: for example {SYMBOLS!r}"
        )


def render_codes(codes: np.ndarray, symbols: tuple[str, ...] = SYMBOLS) -> str:
    """Returns the grid text of cell codes i8[H, W], on the host."""
    return "\n".join("".join(symbols[code] for code in row) for row in np.asarray(codes).tolist())
