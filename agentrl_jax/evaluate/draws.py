"""Different levels among those that an environment draws.

Generated levels repeat: 512 draws of 6x6 Sokoban's test levels have 222 different ones. Results on levels that occur
twice are not independent, so an evaluation plays each content once.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, Int8, Key

from envs_jax import registry
from envs_jax.environment import TextEnvironment
from envs_jax.splits import Split

PATIENCE = 1024
"""Draws in a row without a new level, after which there are no more."""

_AT_ONCE = 128


class Draws:
    """The draws 0, 1, ... of a split, without those whose level, or an image of it, was drawn before.

    They do not depend on how many are wanted. All draws of environments without levels count.
    """

    def __init__(
        self,
        env: TextEnvironment,
        params: Any,
        keys: Callable[[Int[np.ndarray, " n"]], Key[jax.Array, " n"]],
        split: Split,
    ):
        """`keys` returns the level keys of draws."""
        self._env, self._params, self._keys, self._split = env, params, keys, split
        self._tried, self._seen = 0, set[bytes]()
        self._numbers: list[int] = []
        self._exhausted = False
        self._levels: list[Int8[np.ndarray, "H W"]] = []

    def first(self, wanted: int) -> tuple[Int[np.ndarray, " n"], Int8[np.ndarray, "n H W"]]:
        """The numbers of the first `wanted` draws, and their levels, i8[n, 0, 0] if they are no boards.

        They are fewer if `PATIENCE` draws in a row give no new one.
        """
        if not self._env.has_levels:
            return np.arange(wanted), np.zeros((wanted, 0, 0), np.int8)
        while len(self._numbers) < wanted and not self._exhausted:
            self._draw(self._tried + np.arange(min(wanted, _AT_ONCE)))
        return np.array(self._numbers[:wanted]), np.stack(self._levels[:wanted])

    def _draw(self, numbers: Int[np.ndarray, " n"]) -> None:
        levels = registry.sample_levels(self._env, self._params, self._keys(numbers), self._split)
        for number, level in zip(numbers.tolist(), levels):
            self._exhausted |= number - (self._numbers[-1] if self._numbers else 0) > PATIENCE
            if level.tobytes() not in self._seen and not self._exhausted:
                self._numbers.append(number)
                self._levels.append(level)
                self._seen.update(image.tobytes() for image in self._images(level))
        self._tried += len(numbers)

    def _images(self, level: Int8[np.ndarray, "H W"]) -> Iterable[Int8[np.ndarray, "H W"]]:
        try:
            return self._env.level_images(level)
        except NotImplementedError:
            return (level,)
