"""Files that are there whole or not at all, whenever the process ends."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Numbers of the errors of a disk, a quota or a file size that is used up."""


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Gives an `OSError` of writing the name of the file, which the system tells only of opening."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def try_writing(path: str | os.PathLike[str]) -> None:
    """Raises, with the name of the path, the `OSError` that writing into a folder or on to a file would end by."""
    try:
        with tempfile.TemporaryFile(dir=path) if os.path.isdir(path) else open(path, "ab"):
            pass
    except OSError as error:
        error.filename = str(path)  # that of a folder is of the file in it
        raise


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str], *, binary: bool = False) -> Iterator[IO[Any]]:
    """A new file that takes the place of `path` when the block ends without an error.

    Args:
        path: the file; its folder has to be there.
        binary: bytes instead of UTF-8 text.
    """
    temporary = Path(f"{path}.tmp")
    with naming(path), open(temporary, "wb" if binary else "w", encoding=None if binary else "utf-8") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
