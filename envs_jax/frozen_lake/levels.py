"""FrozenLake levels as text: the S F H G maps of Gymnasium, with a blank line between maps.

Cell codes are those of `text`. Shapes: `H`, `W` rows and columns, `N` levels.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from envs_jax import packs
from envs_jax.frozen_lake.text import FROZEN, GOAL, START

MAX_SIDE = 64
"""Most rows and columns of a map."""

_LETTERS = "FHGS"
"""Letters by cell code."""


def parse_maps(text: str) -> list[np.ndarray]:
    """Reads maps separated by blank lines. Spaces around a row and lower case are accepted.

    Args:
        text: The content of a file.

    Returns:
        Levels as cell codes, each i8[H, W] of its own size, checked by `check_level`.

    Raises:
        ValueError: a letter is unknown, the rows of a map differ in length, a map is too large, lacks its one start or
            goal, or there is no map. The message names the line, and the column where there is one, counted from 1.
    """
    levels: list[np.ndarray] = []
    lines: list[int] = []
    rows: list[list[int]] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        row = line.strip()
        if not row:
            if rows:
                levels.append(np.array(rows, np.int8))
                lines.append(number - len(rows))
                rows = []
            continue
        for column, letter in enumerate(row, start=1 + len(line) - len(line.lstrip())):
            if letter.upper() not in _LETTERS:
                raise ValueError(f"line {number}, column {column}: found {letter!r}; expected one of S F H G")
        if rows and len(row) != len(rows[0]):
            raise ValueError(
                f"line {number}: a row of {len(row)} cells follows rows of {len(rows[0])}; expected rows of one "
                "length, and a blank line between maps"
            )
        rows.append([_LETTERS.index(letter.upper()) for letter in row])
        if len(rows) > MAX_SIDE or len(row) > MAX_SIDE:
            raise ValueError(f"line {number}: the map is larger than {MAX_SIDE}x{MAX_SIDE}; expected a smaller one")
    if not levels:
        raise ValueError("the text holds no map; expected rows of the letters S F H G")
    by_size: dict[tuple[int, ...], list[int]] = {}
    for index, level in enumerate(levels):
        by_size.setdefault(level.shape, []).append(index)
    refused = [
        i
        for same in by_size.values()
        for i, good in zip(same, playable(np.stack([levels[i] for i in same])))
        if not good
    ]
    for index in sorted(refused)[:1]:
        check_level(levels[index], f"the map at line {lines[index]}")
    return levels


def check_level(level: np.ndarray, name: str = "level") -> None:
    """Checks that a level, i8[H, W], can be played; it does not check whether the goal can be reached.

    Raises:
        ValueError: it has a code outside 0..3, or not exactly one start and one goal. The message begins with `name`.
    """
    level = np.asarray(level)
    if level.ndim != 2 or 0 in level.shape:
        raise ValueError(f"{name} has shape {level.shape}; expected (rows, columns)")
    if level.min() < FROZEN or level.max() > START:
        raise ValueError(f"{name} holds cell codes {level.min()} to {level.max()}; expected 0 to {START}")
    starts, goals = int((level == START).sum()), int((level == GOAL).sum())
    if starts != 1 or goals != 1:
        raise ValueError(f"{name} has {starts} starts (S) and {goals} goals (G); expected exactly one of each")


def playable(levels: np.ndarray) -> np.ndarray:
    """Whether each level of a pack, i8[N, H, W], can be played, bool[N]: `check_level`, vectorized."""
    if 0 in levels.shape[1:]:
        return np.zeros(len(levels), bool)
    inside = (levels.min((1, 2)) >= FROZEN) & (levels.max((1, 2)) <= START)
    return inside & ((levels == START).sum((1, 2)) == 1) & ((levels == GOAL).sum((1, 2)) == 1)


def stack_levels(levels: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Stacks levels of one size to a pack; there is no padding, because no cell behaves like the edge of the board.

    Returns:
        A pack, i8[N, H, W].

    Raises:
        ValueError: there is no level, or one differs in size or cannot be played; the message names it, from 1.
    """
    if not len(levels):
        raise ValueError("no levels were given; expected at least one")
    for number, level in enumerate(levels, start=1):
        if level.ndim != 2 or level.dtype != np.int8:
            check_level(level, f"level {number}")
        if level.shape != levels[0].shape:
            raise ValueError(
                f"level {number} is {level.shape[0]}x{level.shape[1]} and the first one "
                f"{levels[0].shape[0]}x{levels[0].shape[1]}; expected one size: put other sizes in another file"
            )
    pack = np.stack(list(levels)).astype(np.int8)
    packs.check_playable(pack, "level", playable, check_level)
    return pack


def load_pack(path: str | Path) -> np.ndarray:
    """Reads a pack, i8[N, H, W], from a `.npy` file; see `packs.load`."""
    return packs.load(path, playable, check_level)
