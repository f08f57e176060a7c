"""Files: atomic writes (a file is complete or absent, whenever the process ends), all files of a folder, and what the
user is shown when one cannot be used."""

import contextlib
import errno
import itertools
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from agentrl_jax.errors import MAX_ERROR, MAX_FOREIGN, UserError, shortened

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""errno values for a full disk, a used-up quota and a file that is too large."""


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Adds the file name to an `OSError` raised in the block; the system gives it only for errors of opening."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def try_writing(path: str | os.PathLike[str]) -> None:
    """Raises the `OSError` that writing into a folder or appending to a file would raise, with the path's name."""
    try:
        with tempfile.TemporaryFile(dir=path) if os.path.isdir(path) else open(path, "ab"):
            pass
    except OSError as error:
        error.filename = str(path)  # for a folder the error names the temporary file
        raise


def files_under(folder: Any) -> Iterator[Any]:
    """All files in a folder and its sub-folders: of `pathlib`, or of `epath`, which has no recursive pattern."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from files_under(entry)
        else:
            yield entry


def rename_with_suffix(path: Any, suffix: str) -> Any:
    """Renames N to N.SUFFIX, or to N.SUFFIX.2 and so on if that is taken; returns the new path, of the same class."""
    names = (path.parent / f"{path.name}.{suffix}{f'.{n}' if n > 1 else ''}" for n in itertools.count(1))
    return path.rename(next(name for name in names if not name.exists()))


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], *, binary: bool = False) -> Iterator[IO[Any]]:
    """Opens a new file, of bytes or UTF-8 text, that replaces `path` when the block ends without an error.

    After an error it is deleted.
    """
    temporary = Path(f"{path}.tmp")
    with naming(path):
        stream = open(temporary, "wb" if binary else "w", encoding=None if binary else "utf-8")  # noqa: SIM115
    try:
        with naming(path), stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def sentence(error: BaseException, again: str) -> str | None:
    """What the user is shown of an error that a program is not to blame for, else None; `again` is how work goes on.

    These are `UserError`, a full disk or an unusable file, and too little memory.
    """
    if isinstance(error, UserError):
        return shortened(error, MAX_ERROR)
    if isinstance(error, OSError):
        if error.errno in FULL:
            return f"{error.filename or 'a file'}: the disk is full; nothing is lost: make room{again}"
        where, why = shortened(error.filename or "a file"), error.strerror or shortened(error)
        return (
            f"{where}: cannot be used ({why}), expected a path that can be read and written; give another one, on a "
            "disk with room"
        )
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        what = shortened(str(error).splitlines()[0], MAX_FOREIGN) if str(error) else "out of memory"
        return f"{what}; lower the number of groups, the batch or the size of the model"
    return None


def read_regular(path: str | os.PathLike[str], most: int, *, follow: bool = True) -> bytes | None:
    """The first `most` bytes of a file that others have written; None if it is no regular file.

    A pipe, which nobody need ever write to, is not waited for. Without `follow`, a link is an `OSError`.

    Raises:
        OSError: the file cannot be opened or read.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    with open(os.open(path, flags), "rb") as file:
        return file.read(most) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
