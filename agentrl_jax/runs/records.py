"""JSON-lines files of a run folder: which rows are valid, and how files are read and rolled back."""

import dataclasses
import itertools
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.io import atomic_write

RECORDS = ("metrics.jsonl", "trajectories.jsonl", "levels.jsonl", "failures.jsonl")
"""Names of these files."""
SUPERVISED = ("imitation", "sft", "dpo", "evolve")
"""Stages in metrics.jsonl besides rl."""
PARTS = ".parts"
"""Ending of the folder with further parts of such a file, see `runs.remote`."""


@dataclasses.dataclass(frozen=True)
class Records:
    """The contents of one of `RECORDS`."""

    rows: list[tuple[bytes, dict[str, Any]]]
    """Each valid line as text, with its parsed value."""
    bad: list[int]
    """Numbers of the invalid lines, from 1."""
    torn: bool
    """Whether the last line was cut off, for example by a kill during the write."""


def pieces(file: Path) -> list[Path]:
    """The files that make up one of `RECORDS`: itself, then its parts, NAME.parts/OFFSET, which runs in stores have.

    A part whose offset is not the end of what precedes it is ignored: it is older than the file, which was rewritten.
    """
    found = [file] if file.exists() else []
    end, parts = sum(piece.stat().st_size for piece in found), file.with_name(f"{file.name}{PARTS}")
    for part in sorted(parts.iterdir()) if parts.is_dir() else ():
        if part.name.isdecimal() and int(part.name) == end:
            found.append(part)
            end += part.stat().st_size
    return found


def joined(file: Path) -> bytes:
    """The content of one of `RECORDS` with its parts."""
    return b"".join(piece.read_bytes() for piece in pieces(file))


def join(file: Path) -> None:
    """Makes one file of a record that has parts, as in a copy of a run in an object store."""
    parts = file.with_name(f"{file.name}{PARTS}")
    if parts.is_dir():
        with atomic_write(file, binary=True) as stream:
            stream.write(joined(file))
        shutil.rmtree(parts)


def read_rows(file: Path) -> Records:
    """Reads one of `RECORDS`; a missing file holds nothing. `is_row` says which lines are valid."""
    lines = joined(file).split(b"\n")
    rows, bad = [], []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            row = None
        if is_row(file.name, row):
            rows.append((line + b"\n", row))
        else:
            bad.append(number)
    return Records(rows, bad, torn=bool(lines[-1]))


def is_row(name: str, row: Any) -> bool:
    """Whether a value is a row of the file called `name`: a mapping with an integer `step`.

    A row of metrics.jsonl also has its `stage`, and in RL its `iteration`. A row of levels.jsonl has its `stage` and
    `levels`, a list of strings.
    """
    if not isinstance(row, dict) or not _is_number(row.get("step")):
        return False
    if name == "levels.jsonl":
        levels = row.get("levels")
        return isinstance(row.get("stage"), str) and isinstance(levels, list) and all(type(x) is str for x in levels)
    if name != "metrics.jsonl":
        return True
    return row.get("stage") in SUPERVISED or (row.get("stage") == "rl" and _is_number(row.get("iteration")))


def _is_number(value: Any) -> bool:
    """Whether a value can number a step or an iteration."""
    return type(value) is int and 0 <= value < 2**31


def truncate(file: Path, step: int, aside: Path | None = None) -> str:
    """Drops rows after a step and a last line that was cut off; the rows are kept in the folder `aside`, if given.

    If other lines are invalid, the file is first copied to NAME.before-N; the result says so, and is otherwise empty.
    """
    records, copied = read_rows(file), ""
    kept = [line for line, row in records.rows if row["step"] <= step]
    if aside is not None and len(kept) < len(records.rows):
        aside.mkdir(parents=True, exist_ok=True)
        with atomic_write(aside / file.name, binary=True) as stream:
            stream.write(b"".join(line for line, row in records.rows if row["step"] > step))
    if records.bad:
        names = (file.with_name(f"{file.name}.before-{n}") for n in itertools.count(1))
        copy = next(name for name in names if not name.exists())
        with atomic_write(copy, binary=True) as stream:
            stream.write(file.read_bytes())
        copied = f"{file}: {describe_bad(records)}; the run goes on without it, and {copy.name} is the file as it was"
    elif not records.torn and len(kept) == len(records.rows):
        return ""
    with atomic_write(file, binary=True) as stream:
        stream.write(b"".join(kept))
    return copied


def describe_bad(records: Records) -> str:
    """Says which lines of a file are invalid; `records.bad` must not be empty."""
    more = f", and {len(records.bad) - 1} more" if len(records.bad) > 1 else ""
    return f"line {records.bad[0]} is no row of a run{more}"


def to_plain(value: Any) -> Any:
    """Mappings, lists, text and Python numbers of the same value; null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(entry) for entry in value]
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return to_plain(np.asarray(value).tolist())
