"""Level packs, i8[N, H, W], as `.npy` files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

CheckLevel = Callable[[np.ndarray, str], None]
"""(level i8[H, W], its name) -> None; raises ValueError if the level cannot be played."""


def load(path: str | Path, check_level: CheckLevel) -> np.ndarray:
    """Reads a pack, i8[N, H, W].

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds something else, or a level that cannot be played.
    """
    with open(path, "rb") as file:
        try:
            pack = np.load(file, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise ValueError(f"{path} is no .npy array file ({error}); expected a level pack, i8[N, H, W]") from error
    return _check(pack, str(path), check_level)


def save(path: str | Path, levels: np.ndarray, check_level: CheckLevel) -> None:
    """Writes a pack, i8[N, H, W].

    Raises:
        ValueError: it is not a pack of playable levels; nothing is written.
    """
    pack = _check(np.asarray(levels), "the pack", check_level)
    with open(path, "wb") as file:
        np.save(file, pack, allow_pickle=False)


def _check(pack: np.ndarray, name: str, check_level: CheckLevel) -> np.ndarray:
    if not isinstance(pack, np.ndarray) or pack.dtype != np.int8 or pack.ndim != 3 or not len(pack):
        found = f"{pack.dtype}{list(pack.shape)}" if isinstance(pack, np.ndarray) else type(pack).__name__
        raise ValueError(f"{name} holds {found}; expected a level pack, int8 [N, H, W], with at least one level")
    for number, level in enumerate(pack, start=1):
        check_level(level, f"{name}, level {number}")
    return pack
