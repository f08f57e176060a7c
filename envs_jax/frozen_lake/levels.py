"""FrozenLake levels as text: the S F H G maps of Gymnasium, with a blank line between maps; cell codes as in `text`."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Int8

from envs_jax.errors import BadValue
from envs_jax.frozen_lake.text import GOAL, MAX_SIDE, START
from envs_jax.packs import LevelRules, Levels

_LETTERS = "FHGS"
"""Letters by cell code."""


def _flaws(levels: Levels) -> Iterator[tuple[Bool[np.ndarray, " N"], str]]:
    """Not exactly one start and one goal. Whether the goal can be reached is not checked."""
    starts, goals = (levels == START).sum((1, 2)), (levels == GOAL).sum((1, 2))
    message = f"has {starts[0]} starts (S) and {goals[0]} goals (G); expected exactly one of each"
    yield (starts != 1) | (goals != 1), message


_RULES = LevelRules(START, _flaws)
check_level, playable, load_pack = _RULES.check_level, _RULES.playable, _RULES.load_pack


def parse_maps(text: str) -> list[Int8[np.ndarray, "H W"]]:
    """Reads maps separated by blank lines. Spaces around a row and lower case are accepted.

    Maps may differ in size. Raises a `ValueError` if a letter is unknown, the rows of a map differ in length, a map is
    too large, lacks its one start or goal, or there is no map. The message names the line, and the column where there
    is one, counted from 1.
    """
    levels: list[np.ndarray] = []
    rows: list[list[int]] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        row = line.strip()
        if not row:
            if rows:
                levels.append(np.array(rows, np.int8))
                check_level(levels[-1], f"the map at line {number - len(rows)}")
                rows = []
            continue
        for column, letter in enumerate(row, start=1 + len(line) - len(line.lstrip())):
            if letter.upper() not in _LETTERS:
                raise BadValue(
                    f"line {number}, column {column}: found {letter!r}; expected one of S F H G",
                    f"line {number}",
                    letter,
                )
        if rows and len(row) != len(rows[0]):
            raise BadValue(
                f"line {number}: a row of {len(row)} cells follows rows of {len(rows[0])}; expected rows of one "
                "length, and a blank line between maps",
                f"line {number}",
                len(row),
            )
        rows.append([_LETTERS.index(letter.upper()) for letter in row])
        if len(rows) > MAX_SIDE or len(row) > MAX_SIDE:
            raise BadValue(
                f"line {number}: the map is larger than {MAX_SIDE}x{MAX_SIDE}; expected a smaller one", f"line {number}"
            )
    if not levels:
        raise BadValue("the text holds no map; expected rows of the letters S F H G", "text")
    return levels


def stack_levels(levels: Sequence[np.ndarray] | np.ndarray) -> Levels:
    """Stacks levels of one size to a pack; there is no padding, because no cell behaves like the edge of the board.

    Raises a `ValueError` if there is no level, or if one, which is named, differs in size or cannot be played.
    """
    if not len(levels):
        raise BadValue("no levels were given; expected at least one", "levels")
    for number, level in enumerate(levels, start=1):
        if level.ndim != 2 or level.dtype != np.int8:
            check_level(level, f"level {number}")
        if level.shape != levels[0].shape:
            raise BadValue(
                f"level {number} is {level.shape[0]}x{level.shape[1]} and the first one "
                f"{levels[0].shape[0]}x{levels[0].shape[1]}; expected one size: put other sizes in another file",
                f"level {number}",
                level.shape,
            )
    pack = np.stack(list(levels)).astype(np.int8)
    _RULES.check_pack(pack)
    return pack
