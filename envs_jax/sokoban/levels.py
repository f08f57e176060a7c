"""Sokoban levels as files: plain text in the XSB symbols, and packs of arrays.

XSB: `#` wall, `@` player, `+` player on target, `$` box, `*` box on target, `.` target, and floor as space, `-` or `_`.
Cell codes are those of `text`. Shapes: `H`, `W` rows and columns, `N` levels.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from envs_jax import packs
from envs_jax.sokoban.text import BOX, BOX_ON_TARGET, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, WALL

MAX_SIDE = 64
"""Most rows and columns of a level."""

MAX_LEVELS = 1_000_000
"""Most levels of a file."""

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
_CODE_OF_BYTE = np.zeros(128, np.int8)
_CODE_OF_BYTE[[ord(symbol) for symbol in _CODES]] = list(_CODES.values())
_PLAYERS, _BOXES = (PLAYER, PLAYER_ON_TARGET), (BOX, BOX_ON_TARGET)
_TARGETS = (TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET)
_TOGETHER = 4096  # levels whose walls are filled in one batch
_EXPECTED = "one of # @ + $ * . or a floor (space, - or _)"


def parse_xsb(text: str) -> list[np.ndarray]:
    """Reads levels separated by blank lines.

    Lines that begin with `;` are comments. A line with more letters and digits than `#` is a title, and a line that
    repeats one of - _ = ~ * . is a separator; both may come before or after the rows of a level. Rows may differ in
    length: cells outside the walls become wall.

    Args:
        text: The content of a file.

    Returns:
        Levels as cell codes, each i8[H, W] of its own size, checked by `check_level`.

    Raises:
        ValueError: a symbol is unknown, a board is open, too large or not a playable level, or there is none. The
            message names the line and column, counted from 1.
    """
    boards: list[tuple[int, list[str]]] = []
    rows: list[str] = []
    first = 0
    closed = False
    for number, line in enumerate([*text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""], start=1):
        line = line.rstrip()
        if line.startswith(";") or not line or _is_title(line):
            closed = bool(rows)
            if not line and rows:
                boards.append((first, rows))
                rows, closed = [], False
                if len(boards) > MAX_LEVELS:
                    raise ValueError(f"line {number}: more than {MAX_LEVELS} levels; expected fewer: split the file")
            continue
        if closed:
            raise ValueError(
                f"line {number}, column 1: a row follows a title or comment inside a level; expected a blank line "
                "between levels"
            )
        if not _CODES.keys() >= set(line):
            column, symbol = next((c, symbol) for c, symbol in enumerate(line, start=1) if symbol not in _CODES)
            raise ValueError(f"line {number}, column {column}: found {symbol!r}; expected {_EXPECTED}")
        first = first if rows else number
        rows.append(line)
        if len(rows) > MAX_SIDE or len(line) > MAX_SIDE:
            raise ValueError(f"line {number}: the level is larger than {MAX_SIDE}x{MAX_SIDE}; expected a smaller one")
    if not boards:
        raise ValueError(f"the text holds no level; expected rows of XSB symbols: {_EXPECTED}")
    return _levels(boards)


def check_level(level: np.ndarray, name: str = "level") -> None:
    """Checks that a level, i8[H, W], can be played.

    Raises:
        ValueError: it has a code outside 0..6, not exactly one player, no target, unequal numbers of boxes and targets,
            or is already solved. The message begins with `name`.
    """
    level = np.asarray(level)
    if level.ndim != 2 or 0 in level.shape:
        raise ValueError(f"{name} has shape {level.shape}; expected (rows, columns)")
    if level.min() < WALL or level.max() > PLAYER_ON_TARGET:
        raise ValueError(f"{name} holds cell codes {level.min()} to {level.max()}; expected 0 to {PLAYER_ON_TARGET}")
    players, boxes, targets = (int(np.isin(level, kinds).sum()) for kinds in (_PLAYERS, _BOXES, _TARGETS))
    if players != 1:
        raise ValueError(f"{name} has {players} players; expected exactly one (@, or + on a target)")
    if boxes != targets or targets < 1:
        raise ValueError(f"{name} has {boxes} boxes and {targets} targets; expected as many of each, at least one")
    if not (level == BOX).any():
        raise ValueError(f"{name} is solved already; expected a box that is off target ($)")


def playable(levels: np.ndarray) -> np.ndarray:
    """Whether each level of a pack, i8[N, H, W], can be played, bool[N]: `check_level`, vectorized."""
    if 0 in levels.shape[1:]:
        return np.zeros(len(levels), bool)
    players, boxes, targets = (_count(levels, kinds) for kinds in (_PLAYERS, _BOXES, _TARGETS))
    inside = (levels.min((1, 2)) >= WALL) & (levels.max((1, 2)) <= PLAYER_ON_TARGET)
    return inside & (players == 1) & (boxes == targets) & (targets >= 1) & (levels == BOX).any((1, 2))


def most_boxes(levels: np.ndarray) -> int:
    """Returns the largest number of boxes of a level in a pack, i8[N, H, W]."""
    return int(_count(levels, _BOXES).max())


def stack_levels(levels: Sequence[np.ndarray] | np.ndarray, height: int, width: int) -> np.ndarray:
    """Pads levels with wall, below and to the right, to one size.

    Returns:
        A pack, i8[N, H, W].

    Raises:
        ValueError: a level does not fit or cannot be played; the message names it, counted from 1.
    """
    packs.check_cells(len(levels), height, width)
    pack = np.full((len(levels), height, width), WALL, np.int8)
    for number, level in enumerate(levels, start=1):
        if level.dtype != np.int8 or level.ndim != 2 or 0 in level.shape:
            check_level(level, f"level {number}")
        rows, columns = level.shape
        if rows > height or columns > width:
            raise ValueError(
                f"level {number} is {rows}x{columns}; expected at most {height}x{width}: use a larger board"
            )
        pack[number - 1, :rows, :columns] = level
    packs.check_playable(pack, "level", playable, check_level)
    return pack


def load_pack(path: str | Path) -> np.ndarray:
    """Reads a pack, i8[N, H, W], from a `.npy` file; see `packs.load`."""
    return packs.load(path, playable, check_level)


def _count(levels: np.ndarray, kinds: Sequence[int]) -> np.ndarray:
    """Counts i64[N] of the cells of some kinds in each level, i8[N, H, W]."""
    return np.isin(levels, kinds).sum((1, 2))


def _is_title(line: str) -> bool:
    symbols = set(line)
    if len(line) > 2 and len(symbols) == 1 and line[0] in "-_=~*.":
        return True
    return not _CODES.keys() >= symbols and sum(symbol.isalnum() for symbol in line) > line.count("#")


def _levels(boards: Sequence[tuple[int, Sequence[str]]]) -> list[np.ndarray]:
    """Turns (first line, rows) of levels into cell codes with wall outside; levels of one size are batched."""
    by_size: dict[tuple[int, int], list[int]] = {}
    for index, (_, rows) in enumerate(boards):
        by_size.setdefault((len(rows), max(map(len, rows))), []).append(index)
    levels: list[np.ndarray] = [np.empty(0, np.int8)] * len(boards)
    refused: list[int] = []
    for (height, width), indices in by_size.items():
        for start in range(0, len(indices), _TOGETHER):
            chunk = indices[start : start + _TOGETHER]
            text = "".join(row.ljust(width) for index in chunk for row in boards[index][1])
            codes = _CODE_OF_BYTE[np.frombuffer(text.encode("ascii"), np.uint8)].reshape(-1, height, width)
            outside = _outside(codes)
            is_open = (outside & (codes != FLOOR)).any((1, 2))
            codes = np.where(outside, np.int8(WALL), codes)
            refused += [chunk[i] for i in np.flatnonzero(is_open | ~playable(codes))[:1]]
            for index, level in zip(chunk, codes):
                levels[index] = level
    if refused:
        first, rows = boards[min(refused)]
        _refuse_open(rows, first)
        check_level(levels[min(refused)], f"the level at line {first}")
    return levels


def _outside(codes: np.ndarray) -> np.ndarray:
    """Cells bool[N, H, W] that can be reached from outside the board; one that is not floor means an open board."""
    free = np.pad(codes, ((0, 0), (1, 1), (1, 1)), constant_values=FLOOR) != WALL
    outside = np.zeros_like(free)
    outside[:, 0, 0] = True
    while True:
        spread = outside.copy()
        spread[:, 1:] |= outside[:, :-1]
        spread[:, :-1] |= outside[:, 1:]
        spread[:, :, 1:] |= outside[:, :, :-1]
        spread[:, :, :-1] |= outside[:, :, 1:]
        spread &= free
        if (spread == outside).all():
            return outside[:, 1:-1, 1:-1]
        outside = spread


def _refuse_open(rows: Sequence[str], first: int) -> None:
    """Refuses a level, which begins at line `first`, if its walls do not enclose it."""
    width = max(map(len, rows))
    padded = [row.ljust(width) for row in rows]
    codes = np.array([[_CODES[symbol] for symbol in row] for row in padded], np.int8)
    for row, column in np.argwhere(_outside(codes[None])[0] & (codes != FLOOR))[:1]:
        raise ValueError(
            f"line {first + row}, column {column + 1}: found {padded[row][column]!r} outside the walls; expected a "
            "board closed by # on every side"
        )
