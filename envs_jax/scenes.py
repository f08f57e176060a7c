"""Scenes: what a state looks like, as plain data that a page can draw.

A scene has `kind` and `text`, a list of lines. The kind "grid" also has `width`, `height` and `cells`: H rows of W
cells, each a list of names of `SPRITES` that are drawn in their order, the first at the bottom. The kind "text" has
only its lines. Any scene may have `lists`, such as what is carried: each is a title and entries, pairs of a name and a
note. An environment's function (env, state, params) -> scene gets one (unbatched) state on the host, and is registered
with it, see `registry.Spec`.
"""

import difflib
import string
from collections.abc import Callable, Sequence
from typing import Any

from envs_jax.errors import BadValue

Scene = dict[str, Any]
"""A scene; it can be written as JSON."""

SceneFunction = Callable[[Any, Any, Any], Scene]
"""(env, state, params) -> scene."""

Lists = Sequence[tuple[str, Sequence[tuple[str, str]]]]
"""Titles, each with its entries: a name, and a note that may be empty."""

_COLORS = {
    "red": "#d9363e",
    "green": "#2e9e4f",
    "blue": "#2f6fde",
    "purple": "#8b45c9",
    "yellow": "#e0a800",
    "grey": "#7d8590",
}
_THINGS = {
    "key": "key",
    "ball": "ball",
    "box": "box",
    "open door": "door",
    "closed door": "door",
    "locked door": "door",
}
_TILES = {
    "green": ("#2b7a43", "right place"),
    "yellow": ("#8a6a00", "another place"),
    "black": ("#3a4149", "not in the word"),
    "refused": ("#a0303a", "no word of the list"),
}
_FACING = ("right", "down", "left", "up")


def _sprite(shape: str, color: str, label: str, **more: Any) -> dict[str, Any]:
    return {"shape": shape, "color": color, "label": label, **more}


SPRITES: dict[str, dict[str, Any]] = {
    "floor": _sprite("square", "#f0ebe0", "floor"),
    "wall": _sprite("wall", "#5f6b76", "wall"),
    "ice": _sprite("square", "#d6ecf8", "ice"),
    "hole": _sprite("circle", "#1b3a57", "hole"),
    "start": _sprite("letter", "#4d7186", "Start"),
    "goal": _sprite("diamond", "#2e9e4f", "goal"),
    "target": _sprite("dot", "#d9363e", "target"),
    "box": _sprite("box", "#b9772c", "box"),
    "box on target": _sprite("box", "#2e9e4f", "box on target"),
    "player": _sprite("circle", "#2f6fde", "player"),
    **{
        f"player facing {side}": _sprite("triangle", "#16202a", f"player facing {side}", turn=turn)
        for turn, side in enumerate(_FACING)
    },
    "fallen": _sprite("cross", "#d9363e", "fallen in"),
    "arrived": _sprite("dot", "#ffe066", "arrived"),
    "trail": _sprite("dot", "#7d8590", "been here"),
    "lock": _sprite("cross", "#16202a", "locked"),
    # An open door is translucent.
    **{
        f"{name} {thing}": _sprite(shape, color + ("66" if thing == "open door" else ""), f"{name} {thing}")
        for thing, shape in _THINGS.items()
        for name, color in _COLORS.items()
    },
    "unseen": _sprite("square", "#1f293380", "outside the view"),
    **{f"{name} tile": _sprite("square", color, label) for name, (color, label) in _TILES.items()},
    **{f"letter {letter}": _sprite("letter", "#ffffff", letter) for letter in string.ascii_uppercase},
}
"""What can be drawn in a cell, by name.

`shape` is one of square, circle, triangle, diamond, key, box, door, cross, dot, ball, wall and letter. `color` is
#rrggbb or #rrggbbaa, and `label` is the text for screen readers. A triangle has `turn`, quarter turns clockwise from
one that points right; a letter is the first of the label.
"""


def grid_scene(cells: Sequence[Sequence[Sequence[str]]], text: Sequence[str] = (), lists: Lists = ()) -> Scene:
    """Returns a scene of kind "grid"; `cells` are H rows of W cells, each the names of its sprites.

    Raises:
        ValueError: there is no cell, the rows differ in length, or a sprite is not in `SPRITES`.
    """
    widths = sorted({len(row) for row in cells})
    if len(widths) != 1 or widths[0] < 1:
        raise BadValue(
            f"a grid with rows of {widths} cells; expected at least one row, all of the same length", "cells", widths
        )
    for name in sorted({name for row in cells for cell in row for name in cell} - SPRITES.keys()):
        near = difflib.get_close_matches(name, SPRITES, n=3)
        raise BadValue(
            f"no sprite is called {name!r}; {'did you mean' if near else 'known are'} "
            f"{' or '.join(near) or ', '.join(SPRITES)}",
            "sprite",
            name,
        )
    rows = [[list(cell) for cell in row] for row in cells]
    return {"kind": "grid", "width": widths[0], "height": len(rows), "cells": rows, **_said(text, lists)}


def text_scene(text: Sequence[str], lists: Lists = ()) -> Scene:
    """Returns a scene of kind "text"."""
    return {"kind": "text", **_said(text, lists)}


def _said(text: Sequence[str], lists: Lists) -> Scene:
    found = [{"title": title, "entries": [list(entry) for entry in entries]} for title, entries in lists]
    return {"text": list(text), **({"lists": found} if found else {})}
