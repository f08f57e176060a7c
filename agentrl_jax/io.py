"""Files: atomic writes (a file is complete or absent, whenever the process ends), and all files of a folder."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

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
