"""Sokoban: environment, level generators, level files and exact baselines."""

from collections.abc import Callable

from envs_jax.sokoban.env import Sokoban, SokobanParams, SokobanState
from envs_jax.sokoban.generator import make_generator

__all__ = ["TAGS", "Sokoban", "SokobanParams", "SokobanState", "make_sokoban"]

DIFFERENT_SYMBOLS = ("W", ".", "G", "C", "B", "A", "@")
"""Symbols of SokobanDifferentGridVocab, by cell code."""


def make_sokoban(
    height: int = 6, width: int = 6, boxes: int = 1, search_depth: int = 300, **options: object
) -> tuple[Sokoban, SokobanParams]:
    """Makes a Sokoban whose levels come from the device generator.

    Args:
        height: Rows of the board.
        width: Columns of the board.
        boxes: Boxes of a level, 1 or 2.
        search_depth: Depth budget of the generator's reverse play.
        **options: `vocabulary` and `observation` of `Sokoban`.

    Returns:
        The environment and its default parameters.

    Raises:
        ValueError: an option is out of range.
    """
    generator = make_generator(height, width, boxes, search_depth)
    env = Sokoban(height, width, boxes, generator=generator, **options)  # type: ignore[arg-type]
    return env, env.default_params


TAGS: dict[str, Callable[[], tuple[Sokoban, SokobanParams]]] = {
    "SimpleSokoban": lambda: make_sokoban(),
    "LargerSokoban": lambda: make_sokoban(8, 8, boxes=2, search_depth=10),
    "SokobanDifferentGridVocab": lambda: make_sokoban(search_depth=30, vocabulary=DIFFERENT_SYMBOLS),
    "CoordSokoban": lambda: make_sokoban(observation="grid_coord"),
}
"""The environments RAGEN registers, by tag."""
