"""Finds and reads the files of a rollout log, which is one file or a folder of files.

AgentGym-RL's `rollout_log_dir` holds `stepN/RANK.json`, a file per training step and rank; evaluators of AgentGym write
a file per item into one folder.

The files come from elsewhere and are not trusted: sizes are limited, and bytes that are no Unicode text are replaced.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agentrl_jax.errors import UserError, shortened

MAX_BYTES = 2**27
"""Bytes that are read of a file, or of all files of a folder: 128 MiB."""
MAX_BRACKETS = 5_000_000
"""Opening brackets and braces in them; each may become an object that takes 20 times its bytes."""
MAX_FILES = 100_000
"""Files of a folder."""

_SUFFIXES = (".jsonl", ".json")
_STEP = re.compile(r"step([0-9]{1,9})")
_OTHERS = ("config.yaml", "settings.json", "rollouts")
"""Files and folders of runs and of API models' evaluations, which are no logs of another program."""


class LogFile(NamedTuple):
    """A file of a log."""

    path: Path
    name: str = ""
    """Its path in the folder; empty if the log is one file."""
    step: int | None = None
    """Training step that wrote it; None if the log has no steps."""

    @property
    def remedy(self) -> str:
        """What helps if the log is too large."""
        return "split it" if self.step is None else "show fewer steps with --newest"


class Unusable(ValueError):
    """An episode or a row that cannot be read; the message says why."""


def is_log_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder with files of a log, and none of a run or of an API model's evaluation."""
    folder = Path(path)
    return folder.is_dir() and not any((folder / name).exists() for name in _OTHERS) and bool(find_files(folder))


def find_files(source: Path, *, newest: int = 0) -> list[LogFile]:
    """The files of a log, in natural order; of a folder those in its folders `stepN`, or, without such, its files.

    Args:
        source: the file or the folder.
        newest: how many of the steps, counted from the newest; 0 for all.

    Raises:
        UserError: a folder cannot be read.
    """
    if not source.is_dir():
        return [LogFile(source)]
    try:
        steps = {int(found[1]): entry for entry in source.iterdir() if (found := _STEP.fullmatch(entry.name))}
        of_steps = {step: _files(steps[step]) for step in sorted(steps) if steps[step].is_dir()}
        shown = [step for step, files in of_steps.items() if files][-newest:]
        files: list[tuple[Path, int | None]] = [(file, step) for step in shown for file in of_steps[step]]
        files = files or [(file, None) for file in _files(source)]
    except OSError as error:
        raise UserError.at(source, f"cannot be read ({error.strerror}); give a folder that can be read") from error
    return [LogFile(file, file.relative_to(source).as_posix(), step) for file, step in files]


def _files(folder: Path) -> list[Path]:
    found = [file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES and file.is_file()]
    return sorted(found, key=lambda file: _natural(file.name))


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts numbers in names by their value."""
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(re.split(r"([0-9]{1,18})", name))]


def read_rows(source: Path, *, newest: int = 0) -> Iterator[tuple[LogFile, str, Any]]:
    """Each row of a log with its file and its place there, such as "line 3"; an `Unusable` where it is no JSON.

    Args:
        source: the file or the folder.
        newest: as of `find_files`.

    Raises:
        UserError: a file is missing, cannot be read or is no log, or the files are too many or too large.
    """
    files = find_files(source, newest=newest)
    if len(files) > MAX_FILES:
        raise UserError.at(source, f"has more than {MAX_FILES} files; {files[0].remedy}")
    size = brackets = 0
    for file in files:
        content = _read(file.path)
        size, brackets = size + len(content), brackets + _brackets(content)
        if size > MAX_BYTES or brackets > MAX_BRACKETS:
            most = f"{MAX_BYTES} bytes" if size > MAX_BYTES else f"{MAX_BRACKETS} brackets"
            raise UserError.at(source, f"has more than {most} in its files; {file.remedy}", most)
        for where, row in _rows(content, file.path):
            yield file, where, row


def _read(file: Path) -> bytes:
    if file.suffix.lower() not in _SUFFIXES:
        raise UserError.at(file, "is no .jsonl or .json file; give the rollout log, or the folder of a run")
    if not file.is_file():
        what = "that is no file" if file.exists() else "no such file"
        raise UserError.at(file, f"{what}; give a rollout log of RAGEN, AgentGym-RL or AgentGym", what)
    return read_limited(file, MAX_BYTES)


def read_limited(file: Path, most: int) -> bytes:
    """The bytes of a file of JSON.

    Raises:
        UserError: it cannot be read, or has more than `most` bytes or `MAX_BRACKETS` brackets.
    """
    try:
        with open(file, "rb") as stream:
            content = stream.read(most + 1)
    except OSError as error:
        raise UserError.at(file, f"cannot be read ({error.strerror}); give a file that can be read") from error
    if len(content) > most:
        raise UserError.at(file, f"has more than {most} bytes; split it", most)
    if _brackets(content) > MAX_BRACKETS:
        raise UserError.at(file, f"has more than {MAX_BRACKETS} brackets, too many for a log of this size; split it")
    return content


def _brackets(content: bytes) -> int:
    return content.count(b"{") + content.count(b"[")


def _rows(content: bytes, file: Path) -> Iterator[tuple[str, Any]]:
    if file.suffix.lower() == ".jsonl":
        for number, line in enumerate(content.splitlines(), start=1):
            if line.strip():
                yield f"line {number}", _parsed(line)
        return
    data = _parsed(content)
    if isinstance(data, Unusable):
        yield "", Unusable(f"{data}; write it again, or rename it to .jsonl if it has one episode per line")
        return
    for number, row in enumerate(data if isinstance(data, list) else [data], start=1):
        yield f"episode {number}", row


def _parsed(content: bytes) -> Any:
    try:
        return parse(content)
    except Unusable as error:
        return error


def parse(content: bytes) -> Any:
    """Parses JSON as Python writes it: bytes that are no UTF-8 become U+FFFD, NaN and infinities become None.

    Raises:
        Unusable: it is no JSON.
    """
    try:
        return json.loads(content.decode("utf-8-sig", "replace"), parse_constant=lambda name: None)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"is no JSON ({shortened(error, 100)})") from error
