"""Digests of the files of a folder, so that a damaged byte is found before it is used.

`digests.json` is written last and atomically: a folder that has it is complete.
"""

import hashlib
import json
from pathlib import Path

from agentrl_jax.io import atomic_write

FILE = "digests.json"


class DamageError(Exception):
    """A file is missing or has changed; the message names it."""


def write_digests(folder: Path) -> None:
    """Writes the SHA-256 of every file under a folder into its `digests.json`."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != f"{FILE}.tmp")
    digests = {file.relative_to(folder).as_posix(): _sha256(file) for file in files if file != folder / FILE}
    with atomic_write(folder / FILE) as stream:
        json.dump({"sha256": digests}, stream, indent=1)


def is_complete(folder: Path) -> bool:
    """Whether the folder has its digests."""
    return (folder / FILE).is_file()


def check_digests(folder: Path) -> None:
    """Compares every listed file with its digest; files that are not listed are ignored.

    Raises:
        DamageError: a file differs, is missing or cannot be read, or the digests cannot be read.
    """
    try:
        listed = json.loads((folder / FILE).read_bytes())["sha256"]
        if not listed or not all(isinstance(entry, str) for pair in listed.items() for entry in pair):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        raise DamageError(f"{folder / FILE} cannot be read") from None
    for name, digest in listed.items():
        file = folder / name
        try:
            found = _sha256(file)
        except OSError as error:
            raise DamageError(f"{file} cannot be read ({error.strerror})") from None
        if found != digest:
            raise DamageError(f"{file} is damaged: its SHA-256 is not the one that was written with it")


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
