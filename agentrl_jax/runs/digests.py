"""Digests of the files of a folder, so that a damaged byte is found before it is used.

`digests.json` is written last and atomically: a folder that has it is complete. Folders may be on `gs://` and the like.
"""

import hashlib
import json
from typing import Any

from etils import epath

from agentrl_jax.io import atomic_write, files_under

FILE = "digests.json"


class DamageError(Exception):
    """A file is missing or has changed; the message names it."""


def write_digests(folder: epath.Path) -> None:
    """Writes the SHA-256 of every file under a folder into its `digests.json`."""
    names = {file.relative_to(folder).as_posix(): file for file in files_under(folder)}
    digests = {name: _sha256(file) for name, file in sorted(names.items()) if name not in (FILE, f"{FILE}.tmp")}
    text = json.dumps({"sha256": digests}, indent=1)
    if "://" in str(folder):  # an object appears whole or not at all
        (folder / FILE).write_text(text)
        return
    with atomic_write(folder / FILE) as stream:
        stream.write(text)


def is_complete(folder: Any) -> bool:
    """Whether the folder has its digests."""
    return (folder / FILE).is_file()


def check_digests(folder: epath.Path) -> None:
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


def _sha256(file: epath.Path) -> str:
    with file.open("rb") as stream:
        digest = hashlib.sha256()
        while part := stream.read(2**20):
            digest.update(part)
    return digest.hexdigest()
