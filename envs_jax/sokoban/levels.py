"""Sokoban levels as files: plain text in the XSB symbols, and packs of arrays.

XSB: `#` wall, `@` player, `+` player on target, `$` box, `*` box on target, `.` target, and floor as space, `-` or `_`.
Cell codes are those of `text`.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Int8

from envs_jax.errors import BadValue
from envs_jax.packs import LevelRules, Levels, check_cells
from envs_jax.sokoban.text import BOX, BOX_ON_TARGET, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, WALL

MAX_SIDE = 64
"""Maximum numbers of rows and columns of a level."""

MAX_LEVELS = 1_000_000
"""Maximum number of levels in a file."""

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


def _flaws(levels: Levels) -> Iterator[tuple[Bool[np.ndarray, " N"], str]]:
    """Not exactly one player, unequal numbers of boxes and targets, none of them, or solved already."""
    players, boxes, targets = (np.isin(levels, kinds).sum((1, 2)) for kinds in (_PLAYERS, _BOXES, _TARGETS))
    yield players != 1, f"has {players[0]} players; expected exactly one (@, or + on a target)"
    message = f"has {boxes[0]} boxes and {targets[0]} targets; expected as many of each, at least one"
    yield (boxes != targets) | (targets < 1), message
    yield ~(levels == BOX).any((1, 2)), "is solved already; expected a box that is off target ($)"


_RULES = LevelRules(PLAYER_ON_TARGET, _flaws)
check_level, playable, load_pack = _RULES.check_level, _RULES.playable, _RULES.load_pack


def parse_xsb(text: str) -> list[Int8[np.ndarray, "H W"]]:
    """Reads levels separated by blank lines.

    Lines that begin with `;` are comments. A line with more letters and digits than `#` is a title, unless it follows a
    row and has walls at both ends; a line that repeats one of - _ = ~ * . is a separator. Both may come before or after
    the rows of a level. Rows may differ in length: cells outside the walls become wall. Levels may differ in size.

    Raises a `ValueError` if a symbol is unknown, a board is open, too large or not a playable level, or there is none.
    The message names the line and column, counted from 1.
    """
    boards: list[tuple[int, list[str]]] = []
    rows: list[str] = []
    first, closed = 0, False
    for number, line in enumerate([*text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""], start=1):
        line = line.rstrip()
        if not line:
            if rows:
                boards.append((first, rows))
                if len(boards) > MAX_LEVELS:
                    raise BadValue(
                        f"line {number}: more than {MAX_LEVELS} levels; expected fewer: split the file",
                        f"line {number}",
                    )
            rows, closed = [], False
            continue
        wrong_symbols = rows and line.strip().startswith("#") and line.endswith("#")
        if line.startswith(";") or (_is_title(line) and not wrong_symbols):
            closed = bool(rows)
            continue
        if closed:
            raise BadValue(
                f"line {number}, column 1: a row follows a title or comment inside a level; expected a blank line "
                "between levels",
                f"line {number}",
            )
        if not _CODES.keys() >= set(line):
            column, symbol = next((c, symbol) for c, symbol in enumerate(line, start=1) if symbol not in _CODES)
            raise BadValue(
                f"line {number}, column {column}: found {symbol!r}; expected {_EXPECTED}", f"line {number}", symbol
            )
        first = first if rows else number
        rows.append(line)
        if len(rows) > MAX_SIDE or len(line) > MAX_SIDE:
            raise BadValue(
                f"line {number}: the level is larger than {MAX_SIDE}x{MAX_SIDE}; expected a smaller one",
                f"line {number}",
            )
    if not boards:
        raise BadValue(f"the text holds no level; expected rows of XSB symbols: {_EXPECTED}", "text")
    return _levels(boards)


def most_boxes(levels: Levels) -> int:
    """Returns the largest number of boxes of a level in a pack."""
    return int(np.isin(levels, _BOXES).sum((1, 2)).max())


def stack_levels(levels: Sequence[np.ndarray] | np.ndarray, height: int, width: int) -> Levels:
    """Pads levels with wall, below and to the right, to one size.

    Raises a `ValueError` if a level does not fit or cannot be played; the message names it, counted from 1.
    """
    check_cells(len(levels), height, width)
    pack = np.full((len(levels), height, width), WALL, np.int8)
    for number, level in enumerate(levels, start=1):
        if level.dtype != np.int8 or level.ndim != 2 or 0 in level.shape:
            check_level(level, f"level {number}")
        rows, columns = level.shape
        if rows > height or columns > width:
            raise BadValue(
                f"level {number} is {rows}x{columns}; expected at most {height}x{width}: use a larger board",
                f"level {number}",
                f"{rows}x{columns}",
            )
        pack[number - 1, :rows, :columns] = level
    _RULES.check_pack(pack)
    return pack


def _is_title(line: str) -> bool:
    symbols = set(line)
    if len(line) > 2 and len(symbols) == 1 and line[0] in "-_=~*.":
        return True
    return not _CODES.keys() >= symbols and sum(symbol.isalnum() for symbol in line) > line.count("#")


def _levels(boards: Sequence[tuple[int, Sequence[str]]]) -> list[Int8[np.ndarray, "H W"]]:
    """Turns (first line, rows) of levels into cell codes with wall outside; levels of one size are batched."""
    by_size: dict[tuple[int, int], list[int]] = {}
    for index, (_, rows) in enumerate(boards):
        by_size.setdefault((len(rows), max(map(len, rows))), []).append(index)
    levels: list[np.ndarray] = [np.empty(0, np.int8)] * len(boards)
    refused: dict[int, np.ndarray] = {}  # (row, column) of the symbols outside the walls, by level
    for (height, width), indices in by_size.items():
        for start in range(0, len(indices), _TOGETHER):
            chunk = indices[start : start + _TOGETHER]
            text = "".join(row.ljust(width) for index in chunk for row in boards[index][1])
            codes = _CODE_OF_BYTE[np.frombuffer(text.encode("ascii"), np.uint8)].reshape(-1, height, width)
            outside = _outside(codes)
            is_open = outside & (codes != FLOOR)
            codes = np.where(outside, np.int8(WALL), codes)
            for i in np.flatnonzero(is_open.any((1, 2)) | ~playable(codes))[:1]:
                refused[chunk[i]] = np.argwhere(is_open[i])
            for index, level in zip(chunk, codes):
                levels[index] = level
    if refused:
        index = min(refused)
        first, rows = boards[index]
        for row, column in refused[index][:1]:
            raise BadValue(
                f"line {first + row}, column {column + 1}: found {rows[row][column]!r} outside the walls; expected a "
                "board closed by # on every side",
                f"line {first + row}",
                rows[row][column],
            )
        check_level(levels[index], f"the level at line {first}")
    return levels


def _outside(codes: Levels) -> Bool[np.ndarray, "N H W"]:
    """Cells that can be reached from outside the board; one that is not floor means an open board."""
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
