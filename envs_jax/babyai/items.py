"""AgentGym's items: the levels of MiniGrid 2.3.1 that its BabyAI server makes for a data index.

Index i is level i mod 40 + 1 with seed i div 40. The file has the indices 0 to 2003 of the eighteen levels that
AgentGym-RL trains and tests on, and seeds 0 to 22 of the other levels, exported from MiniGrid.
"""

import functools
import hashlib
from pathlib import Path

import numpy as np
from jaxtyping import Int8, Int32, UInt32

from envs_jax.babyai.levels import Shape
from envs_jax.errors import BadValue

FILE = Path(__file__).with_name("items.npz")

SHAPE = Shape(height=22, width=22, slots=44, clauses=4, hides=True)
"""Shape of the stored levels; it holds every level."""

NUMBERS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 19, 20, 21, 30, 31, 33, 36)
"""The levels of AgentGym-RL's 810 training and 90 test items."""

FAMILIES = {
    "GoTo": tuple(range(1, 12)),
    "Pickup": (19, 20, 21),
    "ActionObjDoor": (30,),
    "FindObj": (31,),
    "OneRoom": (33,),
    "SynthLoc": (36,),
}
"""The families of the published tables, by level."""

UNSOLVABLE = (246, 566, 1406, 1459)
"""Stored items that nobody can solve by the intended rules, all of them training items.

Three have their key behind the door that it opens; the goal of the last is fenced in by things that must not be taken.
"""

PANEL_DIGEST = "c6282edd26aaadca82044522238044546914521dd120942069a616957029dfea"
"""SHA-256 of the levels of `panel()`, in order."""


def panel() -> tuple[int, ...]:
    """Returns the 90 test items: the indices from 1804 to 2003 of the levels in `NUMBERS`.

    The list itself was not published; its sizes by family and a third party's rule for the training items (below 1804)
    give this one. [1800, 2000) would have the same counts; 86 of the items are in both.
    """
    return tuple(index for index in range(1804, 2004) if number_of(index) in NUMBERS)


def others() -> tuple[int, ...]:
    """Returns the stored items of the 22 levels that AgentGym-RL does not use: seeds 0 to 22 of each."""
    return tuple(index for index in stored_indices() if number_of(index) not in NUMBERS)


NAMED = {"panel": panel, "other-levels": others}
"""Sets of items by the name that users give."""


def panel_hashes() -> UInt32[np.ndarray, "90 2"]:
    """Returns `levels.hash_level` of the levels of `panel()`, so that no run trains on one."""
    return _stored()[2]


def number_of(index: int) -> int:
    """Returns the level of an index, 1 to 40."""
    return index % 40 + 1


def family_of(number: int) -> str:
    """Returns the family of a level of `NUMBERS`; "other" for the other levels."""
    return next((name for name, numbers in FAMILIES.items() if number in numbers), "other")


@functools.cache
def _stored() -> tuple[dict[int, int], Int8[np.ndarray, "N H W"], UInt32[np.ndarray, "90 2"]]:
    with np.load(FILE, allow_pickle=False) as file:
        return {int(index): row for row, index in enumerate(file["index"])}, file["levels"], file["panel_hashes"]


def stored_indices() -> tuple[int, ...]:
    """Returns the indices of the stored items, in order."""
    return tuple(_stored()[0])


def load(indices: tuple[int, ...] | Int32[np.ndarray, " N"]) -> Int8[np.ndarray, "N H W"]:
    """Returns stored levels, of `SHAPE`; a `ValueError` names an index that is not stored."""
    rows, packed, _ = _stored()
    for index in indices:
        if int(index) not in rows:
            raise BadValue(
                f"item {index} of BabyAI is not stored; expected 0 to 2003 of the levels {', '.join(map(str, NUMBERS))}"
                ", or a seed up to 22 of another level",
                "item",
                index,
            )
    return packed[[rows[int(index)] for index in indices]]


def digest(levels: Int8[np.ndarray, "N H W"]) -> str:
    """Returns the SHA-256 of levels."""
    return hashlib.sha256(np.ascontiguousarray(levels).tobytes()).hexdigest()
