"""Keeps compiled programs between commands, so that a second start compiles nothing.

JAX reads the settings when it is imported; what the user has set stays.
"""

import os
from pathlib import Path

MAX_BYTES = 8 * 2**30
"""Beyond this size of the cache, JAX removes the programs that were used least recently."""

_FOLDER = "JAX_COMPILATION_CACHE_DIR"


def keep() -> None:
    """Sets JAX's compilation cache to the user's cache folder, if it can be written; call it before JAX is imported.

    A folder that the user has named gets the same size and the same programs, unless these are set too. It gets no size
    if it is in an object store, or other programs fill it without one: JAX's limit fails for programs without the file
    in which it notes their use.
    """
    if _FOLDER not in os.environ and not _use_own():
        return
    folder = os.environ[_FOLDER]
    if "://" not in folder and all(_use_of(path).exists() for path in _programs(folder)):
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(MAX_BYTES))
    # Also programs that compile quickly, of which a run has many.
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def _programs(folder: str) -> list[Path]:
    try:
        return [*Path(folder).glob("*-cache")]
    except OSError:
        return []


def _use_of(program: Path) -> Path:
    """The file in which JAX notes the last use of a program."""
    return program.with_name(f"{program.name.removesuffix('cache')}atime")


def _use_own() -> bool:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl_jax" / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # programs in it are executed
    except (OSError, RuntimeError):
        return False
    if os.access(folder, os.W_OK):
        os.environ[_FOLDER] = str(folder)
    return _FOLDER in os.environ
