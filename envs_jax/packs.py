"""Which levels can be played, and level packs, i8[N, H, W], as `.npy` files."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int8

from envs_jax.errors import BadValue

MAX_CELLS = 1 << 28
"""Maximum number of cells in a pack, summed over its levels."""

Levels = Int8[np.ndarray, "N H W"]


@dataclasses.dataclass(frozen=True)
class LevelRules:
    """Which levels of an environment can be played.

    Cell codes are 0 to `last_code`. `flaws` takes levels [N, H, W] with valid codes, and gives for each rule which
    levels break it, bool[N], and what to say of the first level.
    """

    last_code: int
    flaws: Callable[[Levels], Iterator[tuple[Bool[np.ndarray, " N"], str]]]

    def check_level(self, level: np.ndarray, name: str = "level") -> None:
        """Raises a `ValueError` that begins with `name` if a level [H, W] cannot be played."""
        level = np.asarray(level)
        if level.ndim != 2 or 0 in level.shape:
            raise BadValue(f"{name} has shape {level.shape}; expected (rows, columns)", name, level.shape)
        if level.min() < 0 or level.max() > self.last_code:
            raise BadValue(
                f"{name} holds cell codes {level.min()} to {level.max()}; expected 0 to {self.last_code}", name
            )
        for broken, message in self.flaws(level[None]):
            if broken[0]:
                raise BadValue(f"{name} {message}", name)

    def playable(self, levels: Levels) -> Bool[np.ndarray, " N"]:
        """Returns which levels can be played."""
        if 0 in levels.shape:
            return np.zeros(len(levels), bool)
        good = (levels.min((1, 2)) >= 0) & (levels.max((1, 2)) <= self.last_code)
        for broken, _ in self.flaws(levels):
            good &= ~broken
        return good

    def check_pack(self, pack: Levels, name: str = "level") -> None:
        """Raises a `ValueError` with `name` and the number, from 1, of the first level that cannot be played."""
        for index in np.flatnonzero(~self.playable(pack))[:1]:
            self.check_level(pack[index], f"{name} {index + 1}")

    def load_pack(self, path: str | Path) -> Levels:
        """Reads a pack; raises a `ValueError` if the file holds something else, or a level that cannot be played."""
        pack = read_pack(path)
        self.check_pack(pack, f"{path}, level")
        return pack


def read_pack(path: str | Path) -> Levels:
    """Reads a pack, int8[N, H, W] with at least one level; raises a `ValueError` if the file holds something else."""
    with open(path, "rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, _, dtype = readers[version](file)
        except Exception as error:  # NumPy does not catch what Python's parser raises for a damaged header
            reason = " ".join(str(error).split())[:200]
            raise BadValue(
                f"{path} is no .npy array file ({reason}); expected a level pack, i8[N, H, W]", path
            ) from error
        # The header may request any amount of memory, so nothing is allocated before it is compared with the size
        # of the file.
        if dtype != np.int8 or len(shape) != 3 or not shape[0]:
            found = f"{str(dtype)[:60]}{str(list(shape))[:60]}"
            raise BadValue(
                f"{path} holds {found}; expected a level pack, int8 [N, H, W], with at least one level", path, found
            )
        check_cells(*shape)
        start = file.tell()
        if file.seek(0, 2) - start != math.prod(shape):
            raise BadValue(
                f"{path} has not the size of the int8{list(shape)} that it names; write it again", path, shape
            )
        file.seek(0)
        pack = np.load(file, allow_pickle=False)
    return pack


def check_cells(number: int, height: int, width: int) -> None:
    """Raises a `ValueError` for a pack of more than `MAX_CELLS`."""
    if number * height * width > MAX_CELLS:
        raise BadValue(
            f"{number} levels on a board of {height}x{width} are {number * height * width} cells; expected at most "
            f"{MAX_CELLS}: put the largest levels in another file, or fewer levels in one",
            "levels",
            number,
        )
