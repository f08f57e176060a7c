"""Reads files of a model's folder as plain data, and never from outside the folder."""

from pathlib import Path
from typing import Any

from agentrl_jax.models.io.errors import WeightsError, naming
from agentrl_jax.strict_json import parse_object

JSON_BYTES = 64 * 2**20
"""Largest JSON or text file that is read; the largest tokenizers in use take 35 MB."""


def path_inside(folder: Path, name: str) -> Path:
    """Path of the file called `name` in `folder`; it need not exist.

    A symbolic link is followed if its target is inside the folder or, for a snapshot in Hugging Face's cache, among the
    blobs of the same repository. Other links are refused: a downloaded folder could link to a private file, whose
    content would then be copied to every place where the model is saved.
    """
    if not name or name in (".", "..") or any(character in name for character in "/\\\0") or len(name) > 255:
        raise WeightsError.at(
            folder, f"names the file {name[:300]!r}; expected a file of this folder, without any path"
        )
    path = folder / name
    try:
        home, target = folder.resolve(), path.resolve()
        if target.is_symlink():  # since Python 3.13 a loop of links is no error
            raise OSError("the link leads back to itself")
    except (OSError, RuntimeError) as error:
        raise WeightsError.at(path, f"cannot be followed ({error}); replace the link by the file") from error
    allowed = [home] + ([home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [])
    if not any(target.is_relative_to(parent) for parent in allowed):
        raise WeightsError.at(path, f"is a link to {target}, outside of the folder; replace the link by the file")
    return path


def read_bytes(path: Path, limit: int = JSON_BYTES) -> bytes:
    """The content of a file of at most `limit` bytes."""
    with naming(path):
        if not path.is_file():
            raise WeightsError.at(path, "no such file; give the folder that `save_pretrained` wrote")
        if (size := path.stat().st_size) > limit:
            raise WeightsError.at(path, f"{size} bytes; expected at most {limit} for a file of this kind")
        return path.read_bytes()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; strict JSON, without repeated keys."""
    return parse_json(read_bytes(path), str(path))


def parse_json(content: bytes, where: str) -> dict[str, Any]:
    """Like `read_json`, for content in memory; `where` is its name in error messages."""
    try:
        return parse_object(content, where)
    except ValueError as error:
        raise WeightsError.after("", error) from error
