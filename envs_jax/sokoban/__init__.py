"""Sokoban: environment, level generators, level files and exact baselines."""

from collections.abc import Callable, Sequence
from functools import partial

from envs_jax.sokoban.env import Sokoban, SokobanParams, SokobanState
from envs_jax.sokoban.generator import make_generator
from envs_jax.sokoban.text import SYMBOLS

__all__ = ["TAGS", "Sokoban", "SokobanParams", "SokobanState", "make_sokoban"]

DIFFERENT_SYMBOLS = ("W", ".", "G", "C", "B", "A", "@")
"""Symbols of SokobanDifferentGridVocab, by cell code."""


def make_sokoban(
    height: int = 6,
    width: int = 6,
    boxes: int = 1,
    search_depth: int = 300,
    vocabulary: Sequence[str] = SYMBOLS,
    observation: str = "grid",
) -> tuple[Sokoban, SokobanParams]:
    """Makes a Sokoban whose levels are generated on the device; a `ValueError` if an option is out of range.

    The board has at least 5x5 cells and 1 or 2 boxes. `search_depth` limits the generator's reverse play, `vocabulary`
    has seven symbols by cell code; for the observations see `grid.FORMATS`.
    """
    generator = make_generator(height, width, boxes, search_depth)
    env = Sokoban(height, width, boxes, tuple(vocabulary), observation, generator)
    return env, env.default_params


TAGS: dict[str, Callable[..., tuple[Sokoban, SokobanParams]]] = {
    "SimpleSokoban": make_sokoban,
    "LargerSokoban": partial(make_sokoban, height=8, width=8, boxes=2, search_depth=10),
    "SokobanDifferentGridVocab": partial(make_sokoban, search_depth=30, vocabulary=DIFFERENT_SYMBOLS),
    "CoordSokoban": partial(make_sokoban, observation="grid_coord"),
}
"""The environments RAGEN registers, by tag; each can be called with other options of `make_sokoban`."""
