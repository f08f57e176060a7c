"""Pictures of a level in the style of MiniGrid: the whole grid, with what the agent sees made lighter."""

import functools
import math
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from envs_jax.babyai.codes import (
    BALL,
    BOX,
    CLOSED_DOOR,
    KEY,
    LOCKED_DOOR,
    OBJECT,
    OPEN_DOOR,
    WALL,
    color_of,
    form_of,
)
from envs_jax.babyai.scene import extent, seen_cells
from envs_jax.babyai.state import BabyAIState

TILE = 32
"""Pixels of a cell's side."""

NO_AGENT = -1
"""Heading in a cell without the agent."""

_FINE = 4 * TILE
"""Pixels of a side while drawing; shrinking makes edges smooth."""

_LIGHT = 0.3
"""Share of white in what the agent sees."""

_BLACK, _GRAY = (0, 0, 0), (100, 100, 100)
_COLORS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (112, 39, 195), (255, 255, 0), _GRAY)
_AGENT = (255, 0, 0)

Color = tuple[int, int, int]


def picture(state: BabyAIState) -> Image.Image:
    """Returns the picture of one (unbatched) state."""
    host: Any = jax.device_get(state)
    world = host.world
    rows, columns = extent(world.cells)
    cells = world.cells[:rows, :columns].astype(int)
    headings = np.full(cells.shape, NO_AGENT)
    headings[world.y, world.x] = world.heading
    kinds = np.stack([cells, headings, seen_cells(host, rows, columns)], axis=-1)
    unique, index = np.unique(kinds.reshape(-1, 3), axis=0, return_inverse=True)
    tiles = np.stack([_tile(*kind) for kind in unique.tolist()])[index.reshape(rows, columns)]
    return Image.fromarray(tiles.transpose(0, 2, 1, 3, 4).reshape(rows * TILE, columns * TILE, 3))


@functools.cache
def _tile(cell: int, heading: int, seen: int) -> UInt8[np.ndarray, "32 32 3"]:
    image = Image.new("RGB", (_FINE, _FINE), _BLACK)
    brush = _Brush(ImageDraw.Draw(image))
    if cell == WALL:
        brush.rectangle(0, 0, 1, 1, _GRAY)
    else:
        brush.rectangle(0, 0, 1, 1 / TILE, _GRAY)
        brush.rectangle(0, 0, 1 / TILE, 1, _GRAY)
    if cell >= OBJECT:
        _draw_object(brush, form_of(cell), _COLORS[color_of(cell)])
    if heading != NO_AGENT:
        _draw_agent(brush, heading)
    pixels = np.asarray(image.resize((TILE, TILE), Image.Resampling.BOX))
    return (pixels + seen * _LIGHT * (255 - pixels.astype(float))).astype(np.uint8)


class _Brush:
    """Draws in a cell, whose corners are (0, 0) and (1, 1)."""

    def __init__(self, draw: ImageDraw.ImageDraw):
        self._draw = draw

    def rectangle(self, left: float, top: float, right: float, bottom: float, color: Color) -> None:
        edges = [round(edge * _FINE) for edge in (left, top, right, bottom)]
        self._draw.rectangle((edges[0], edges[1], edges[2] - 1, edges[3] - 1), color)

    def circle(self, x: float, y: float, radius: float, color: Color) -> None:
        self._draw.ellipse([_FINE * edge for edge in (x - radius, y - radius, x + radius, y + radius)], color)

    def polygon(self, corners: list[tuple[float, float]], color: Color) -> None:
        self._draw.polygon([(_FINE * x, _FINE * y) for x, y in corners], color)

    def frame(self, margin: float, width: float, color: Color, inner: Color = _BLACK) -> None:
        self.rectangle(margin, margin, 1 - margin, 1 - margin, color)
        margin += width
        self.rectangle(margin, margin, 1 - margin, 1 - margin, inner)


def _draw_object(brush: _Brush, form: int, color: Color) -> None:
    if form == KEY:
        brush.circle(0.5, 0.3, 0.18, color)
        brush.circle(0.5, 0.3, 0.08, _BLACK)
        brush.rectangle(0.45, 0.45, 0.55, 0.88, color)
        for top in (0.62, 0.78):
            brush.rectangle(0.33, top, 0.45, top + 0.08, color)
    elif form == BALL:
        brush.circle(0.5, 0.5, 0.32, color)
    elif form == BOX:
        brush.frame(0.14, 0.07, color)
        brush.rectangle(0.14, 0.46, 0.86, 0.54, color)
    elif form == OPEN_DOOR:
        brush.rectangle(0.88, 0, 1, 1, color)
        brush.rectangle(0.92, 0.04, 0.96, 0.96, _BLACK)
    elif form == CLOSED_DOOR:
        brush.frame(0, 0.05, color)
        brush.frame(0.09, 0.05, color)
        brush.circle(0.74, 0.5, 0.08, color)
    elif form == LOCKED_DOOR:
        red, green, blue = (part * 2 // 5 for part in color)
        brush.frame(0, 0.07, color, (red, green, blue))
        brush.circle(0.68, 0.45, 0.09, color)
        brush.rectangle(0.65, 0.45, 0.71, 0.68, color)


def _draw_agent(brush: _Brush, heading: int) -> None:
    """A triangle that points right, turned about the middle of the cell."""
    angle = heading * math.pi / 2
    turned = [
        (0.5 + x * math.cos(angle) - y * math.sin(angle), 0.5 + x * math.sin(angle) + y * math.cos(angle))
        for x, y in ((-0.38, -0.32), (0.38, 0.0), (-0.38, 0.32))
    ]
    brush.polygon(turned, _AGENT)
