"""Sokoban levels as files: plain text in the XSB symbols, and packs of arrays.

XSB: `#` wall, `@` player, `+` player on target, `$` box, `*` box on target, `.` target, and floor as space, `-` or `_`.
Cell codes are those of `text`. Letters: `H`, `W` rows and columns, `N` levels.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from envs_jax import packs
from envs_jax.sokoban.text import BOX, BOX_ON_TARGET, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, WALL, render_codes

MAX_SIDE = 64
"""Rows and columns that a level may have."""

MAX_LEVELS = 1_000_000
"""Levels that a file may hold."""

_CODES = {
    "#": WALL,
    " ": FLOOR,
    "-": FLOOR,
    "_": FLOOR,
    ".": TARGET,
    "*": BOX_ON_TARGET,
    "$": BOX,
    "@": PLAYER,
    "+": PLAYER_ON_TARGET,
}
_SYMBOLS = ("#", " ", ".", "*", "$", "@", "+")
_EXPECTED = "one of # @ + $ * . or a floor (space, - or _)"


def parse_xsb(text: str) -> list[np.ndarray]:
    """Reads levels separated by blank lines.

    Lines that begin with `;` are comments. A line with more letters and digits than `#` is a title, and a line that
    repeats one of - _ = ~ * . is a rule; both may stand before or after the rows of a level. Rows may be ragged: what
    lies outside the walls becomes wall.

    Args:
        text: The content of a file.

    Returns:
        Levels as cell codes, each i8[H, W] of its own size, checked by `check_level`.

    Raises:
        ValueError: a symbol is unknown, a board is open, too large or not a playable level, or there is none. The
            message names the line and column, counted from 1.
    """
    levels: list[np.ndarray] = []
    rows: list[str] = []
    first = 0
    closed = False
    for number, line in enumerate([*text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""], start=1):
        line = line.rstrip()
        if line.startswith(";") or not line or _is_title(line):
            closed = bool(rows)
            if not line and rows:
                levels.append(_board(rows, first))
                rows, closed = [], False
                if len(levels) > MAX_LEVELS:
                    raise ValueError(f"line {number}: more than {MAX_LEVELS} levels; expected fewer: split the file")
            continue
        if closed:
            raise ValueError(
                f"line {number}, column 1: a row follows a title or comment inside a level; expected a blank line "
                "between levels"
            )
        for column, symbol in enumerate(line, start=1):
            if symbol not in _CODES:
                raise ValueError(f"line {number}, column {column}: found {symbol!r}; expected {_EXPECTED}")
        first = first if rows else number
        rows.append(line)
        if len(rows) > MAX_SIDE or len(line) > MAX_SIDE:
            raise ValueError(f"line {number}: the level is larger than {MAX_SIDE}x{MAX_SIDE}; expected a smaller one")
    if not levels:
        raise ValueError(f"the text holds no level; expected rows of XSB symbols: {_EXPECTED}")
    return levels


def format_xsb(levels: Sequence[np.ndarray] | np.ndarray) -> str:
    """Writes levels, each i8[H, W], so that `parse_xsb` reads them back. Their border must be wall."""
    return "\n\n".join(render_codes(level, _SYMBOLS) for level in levels) + "\n"


def check_level(level: np.ndarray, name: str = "level") -> None:
    """Checks that a level, i8[H, W], can be played.

    Raises:
        ValueError: it has a code outside 0..6, not exactly one player, no target, as many boxes as targets, or nothing
            left to do. The message begins with `name`.
    """
    level = np.asarray(level)
    if level.ndim != 2 or 0 in level.shape:
        raise ValueError(f"{name} has shape {level.shape}; expected (rows, columns)")
    if level.min() < WALL or level.max() > PLAYER_ON_TARGET:
        raise ValueError(f"{name} holds cell codes {level.min()} to {level.max()}; expected 0 to {PLAYER_ON_TARGET}")
    players = int(np.isin(level, (PLAYER, PLAYER_ON_TARGET)).sum())
    boxes = int(np.isin(level, (BOX, BOX_ON_TARGET)).sum())
    targets = int(np.isin(level, (TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET)).sum())
    if players != 1:
        raise ValueError(f"{name} has {players} players; expected exactly one (@, or + on a target)")
    if boxes != targets or targets < 1:
        raise ValueError(f"{name} has {boxes} boxes and {targets} targets; expected as many of each, at least one")
    if not (level == BOX).any():
        raise ValueError(f"{name} is solved already; expected a box that is off target ($)")


def stack_levels(levels: Sequence[np.ndarray], height: int, width: int) -> np.ndarray:
    """Pads levels with wall, below and to the right, to one size.

    Returns:
        A pack, i8[N, H, W].

    Raises:
        ValueError: a level does not fit or cannot be played; the message names it, counted from 1.
    """
    pack = np.full((len(levels), height, width), WALL, np.int8)
    for number, level in enumerate(levels, start=1):
        check_level(level, f"level {number}")
        rows, columns = level.shape
        if rows > height or columns > width:
            raise ValueError(
                f"level {number} is {rows}x{columns}; expected at most {height}x{width}: use a larger board"
            )
        pack[number - 1, :rows, :columns] = level
    return pack


def save_pack(path: str | Path, levels: np.ndarray) -> None:
    """Writes a pack, i8[N, H, W], as a `.npy` file; see `packs.save`."""
    packs.save(path, levels, check_level)


def load_pack(path: str | Path) -> np.ndarray:
    """Reads a pack, i8[N, H, W], from a `.npy` file; see `packs.load`."""
    return packs.load(path, check_level)


def _is_title(line: str) -> bool:
    if len(line) > 2 and len(set(line)) == 1 and line[0] in "-_=~*.":
        return True
    return sum(symbol.isalnum() for symbol in line) > line.count("#")


def _board(rows: list[str], first: int) -> np.ndarray:
    """Turns the rows of one level, which begins at line `first`, into cell codes with wall outside."""
    width = max(len(row) for row in rows)
    padded = [row.ljust(width) for row in rows]
    codes = np.array([[_CODES[symbol] for symbol in row] for row in padded], np.int8)

    # Floor that can be reached from beyond the board is outside. Whatever else can be reached lies in an open board.
    outside = np.zeros((len(rows) + 2, width + 2), bool)
    outside[0, 0] = True
    border = np.pad(codes, 1, constant_values=FLOOR)
    while True:
        spread = outside.copy()
        spread[1:] |= outside[:-1]
        spread[:-1] |= outside[1:]
        spread[:, 1:] |= outside[:, :-1]
        spread[:, :-1] |= outside[:, 1:]
        spread &= border != WALL
        if (spread == outside).all():
            break
        outside = spread
    open_ = np.argwhere(outside & (border != FLOOR))
    if len(open_):
        row, column = open_[0]
        raise ValueError(
            f"line {first + row - 1}, column {column}: found {padded[row - 1][column - 1]!r} outside the walls; "
            "expected a board closed by # on every side"
        )
    codes[outside[1:-1, 1:-1]] = WALL
    check_level(codes, f"the level at line {first}")
    return codes
