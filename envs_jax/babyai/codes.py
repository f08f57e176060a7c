"""Codes of cells, objects and missions, and their names in MiniGrid's text.

A cell is one integer: 0 unseen, 1 empty, 2 wall, then `OBJECT + form * COLORS + color`, where the form is one of
`FORMS`. In the cells of a level, a box that hides a key has `HIDING + color of the box * COLORS + color of the key`.
"""

from typing import Any

import numpy as np

COLOR_NAMES = ("red", "green", "blue", "purple", "yellow", "grey")
COLORS = len(COLOR_NAMES)
"""Colors, in MiniGrid's order."""

FORMS = ("key", "ball", "box", "open door", "closed door", "locked door")
KEY, BALL, BOX, OPEN_DOOR, CLOSED_DOOR, LOCKED_DOOR = range(6)
"""What an object is; a door is three forms of one object."""

TYPE_NAMES = ("key", "ball", "box", "door")
DOOR = 3
"""Types in missions, where a door is a door: the first forms, then all doors."""

UNSEEN, EMPTY, WALL, OBJECT = range(4)
NAMES = tuple(f"{color} {form}" for form in FORMS for color in COLOR_NAMES)
"""Name of each object, by `cell - OBJECT`."""

NUM_CELLS = OBJECT + len(NAMES)
HIDING = NUM_CELLS
LAST_CELL = HIDING + COLORS * COLORS - 1

LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
"""Primitive actions, in MiniGrid's order."""

NO_OPERATION = -1
"""A primitive action that does nothing and does not count."""

DIRECTIONS = np.array([(1, 0), (0, 1), (-1, 0), (0, -1)], np.int32)
"""Steps (x, y) of the headings right, down, left, up."""

NO_VERB, GO_TO, OPEN, PICK_UP, PUT_NEXT = range(5)
"""What a clause of a mission asks for."""

SINGLE, BEFORE, AFTER = range(3)
"""How the two parts of a mission are joined; SINGLE has one part."""

ANY = -1
"""Of the type, color or place in a description: not given."""

PLACES = ("left", "right", "front", "behind")
"""Half-planes in which an object can be, seen from the start."""

CLAUSES = 4
"""Clauses of a mission: two of each part, which are both to be done in any order."""

GRAY = COLOR_NAMES.index("grey")


def _minigrid_table() -> np.ndarray:
    rows = [(0, 0, 0), (1, 0, 0), (2, GRAY, 0)]
    rows += [
        (4, color, form - OPEN_DOOR) if form >= OPEN_DOOR else (5 + form, color, 0)
        for form in range(len(FORMS))
        for color in range(COLORS)
    ]
    return np.array(rows, np.uint8)


MINIGRID = _minigrid_table()
"""u8[NUM_CELLS, 3]: MiniGrid's (type, color, state) of each cell code."""


def cell_of(form: Any, color: Any) -> Any:
    """Returns the cell code of an object; also for arrays."""
    return OBJECT + form * COLORS + color


def form_of(cell: Any) -> Any:
    """Returns the form of a cell's object; negative if the cell has none. Also for arrays."""
    return (cell - OBJECT) // COLORS


def color_of(cell: Any) -> Any:
    """Returns the color of a cell's object. Also for arrays."""
    return (cell - OBJECT) % COLORS


def type_of(cell: Any) -> Any:
    """Returns the type of the objects of an array of cells, as in missions; negative where a cell has none."""
    return form_of(cell).clip(max=DOOR)
