"""Level packs, i8[N, H, W], as `.npy` files."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

Playable = Callable[[np.ndarray], np.ndarray]
"""levels i8[N, H, W] -> whether each can be played, bool[N]."""

CheckLevel = Callable[[np.ndarray, str], None]
"""(level i8[H, W], its name) -> None; raises a ValueError that says why the level cannot be played."""

MAX_CELLS = 1 << 28
"""Most cells of a pack, summed over its levels."""


def load(path: str | Path, playable: Playable, check_level: CheckLevel) -> np.ndarray:
    """Reads a pack, i8[N, H, W].

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds something else, or a level that cannot be played.
    """
    with open(path, "rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, _, dtype = read(file)
        except Exception as error:  # NumPy does not catch what Python's parser raises for a damaged header
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"{path} is no .npy array file ({reason}); expected a level pack, i8[N, H, W]") from error
        # The header may request any amount of memory, so nothing is allocated before it is compared with the size of
        # the file.
        _check_kind(dtype, shape, str(path))
        start = file.tell()
        if file.seek(0, 2) - start != math.prod(shape):
            raise ValueError(f"{path} has not the size of the int8{list(shape)} that it names; write it again")
        file.seek(0)
        pack = np.load(file, allow_pickle=False)
    check_playable(pack, f"{path}, level", playable, check_level)
    return pack


def check_cells(number: int, height: int, width: int) -> None:
    """Refuses a pack of more than `MAX_CELLS`; raises `ValueError`."""
    if number * height * width > MAX_CELLS:
        raise ValueError(
            f"{number} levels on a board of {height}x{width} are {number * height * width} cells; expected at most "
            f"{MAX_CELLS}: put the largest levels in another file, or fewer levels in one"
        )


def check_playable(pack: np.ndarray, name: str, playable: Playable, check_level: CheckLevel) -> None:
    """Refuses a pack, i8[N, H, W], with an unplayable level; the message has `name` and the level's number, from 1."""
    for index in np.flatnonzero(~playable(pack))[:1]:
        check_level(pack[index], f"{name} {index + 1}")


def _check_kind(dtype: np.dtype, shape: tuple[int, ...], name: str) -> None:
    if dtype != np.int8 or len(shape) != 3 or not shape[0]:
        found = f"{str(dtype)[:60]}{str(list(shape))[:60]}"
        raise ValueError(f"{name} holds {found}; expected a level pack, int8 [N, H, W], with at least one level")
    check_cells(*shape)
