"""The folder of a run: what it holds, who may write to it, and how it is rolled back to a checkpoint.

    config.yaml          every value of the configuration; once the folder holds a metric or a checkpoint, `agentrl
                         train` refuses a configuration that differs in keys other than MAY_CHANGE
    config.history.jsonl its changes, a row each: the last step before the change, and old and new value by key
    metrics.jsonl        one row per step: first chunks of imitation, then iterations
    trajectories.jsonl   trajectories as text, written every few iterations
    levels.jsonl         the levels of every batch and of the evaluation, see agentrl_jax.evaluate.seen
    tensorboard/         the numbers of metrics.jsonl as TensorBoard events
    checkpoints/         see agentrl_jax.runs.checkpoint
    curves.png, summary.json

Rows carry their step as `step`. A row of step k is written before checkpoint k is saved. A run that was killed
therefore finds every row up to its last checkpoint, and removes the later ones.
"""

import contextlib
import dataclasses
import fcntl
import itertools
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from agentrl_jax.config import Config, differences, load_resolved, save_resolved, to_dict
from agentrl_jax.errors import UserError
from agentrl_jax.io import FULL, atomic_write, naming, try_writing

_CONFIG = "config.yaml"
_HISTORY = "config.history.jsonl"
MAY_CHANGE = frozenset(
    f"train.{name}"
    for name in (
        "iterations",
        "checkpoint_every",
        "keep",
        "validate_every",
        "validation_episodes",
        "trajectories_every",
        "trajectories",
        "max_bad_updates",
        "on_collapse",
        "max_roll_backs",
    )
)
"""Keys that may change when a run is resumed or has ended, since no computed number depends on them. `evaluation` is
not among them, because the initial policy was evaluated with it and is compared with the final one. Neither is
`validation_temperature`, because validations are compared with earlier ones."""
_LOCK = ".lock"
RECORDS = ("metrics.jsonl", "trajectories.jsonl", "levels.jsonl", "failures.jsonl")
"""JSON-lines files in the folder of a run."""


class RunFolder:
    """An open run folder, locked by one process at a time.

    Attributes:
        path: the folder.
        checkpoints: its checkpoints.
    """

    def __init__(self, config: Config, path: str | os.PathLike[str] | None = None):
        """Creates the folder of a run or reopens it.

        Args:
            config: the run's configuration.
            path: the folder; default: `config.run_dir`.

        Raises:
            UserError: the folder holds another configuration or files that are not a run's, cannot be written, or is in
                use.
        """
        self.path = Path(path if path is not None else config.run_dir)
        self.checkpoints = self.path / "checkpoints"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / _LOCK, "a")  # noqa: SIM115 (held open for as long as the run)
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be used as run folder ({error.strerror}), expected one that can be written; give "
                "another one with --run_dir"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases it when the process ends
        except OSError:
            self._lock.close()
            raise UserError(
                f"{self.path}: another process is writing to this run folder; wait for it, stop it, or give another "
                "folder with --run_dir"
            ) from None
        try:
            self._refuse_unwritable()
            self._claim(config)
        except BaseException:
            self._lock.close()
            raise
        self._files: dict[str, IO[str]] = {}
        self._events: EventsWriter | None = None
        self._purge: int | None = None

    def _refuse_unwritable(self) -> None:
        """Checks at the start that all of the folder can be written, since later a failure would waste iterations."""
        parts = [self.checkpoints, *(self.path / name for name in ("tensorboard", "roll_backs", *RECORDS))]
        for part in [self.path, *(part for part in parts if part.exists())]:
            try:
                try_writing(part)
            except OSError as error:
                if error.errno in FULL:
                    raise
                raise UserError(
                    f"{part}: cannot be written ({error.strerror}), expected a run folder in which everything can be; "
                    "make it writable, or give another folder with --run_dir"
                ) from error

    def _claim(self, config: Config) -> None:
        file = self.path / _CONFIG
        if not file.exists():
            strangers = sorted(
                entry.name for entry in self.path.iterdir() if entry.name not in (_LOCK, f"{_CONFIG}.tmp")
            )
            if strangers:
                raise UserError(
                    f"{self.path}: holds {strangers[0]!r} but no {_CONFIG}, so it is no run folder; give an empty or "
                    "a new folder with --run_dir"
                )
            save_resolved(config, file)
            return
        if not (self.path / "metrics.jsonl").exists() and not any(self.checkpoints.glob("*")):
            save_resolved(config, file)  # no earlier run has recorded anything here
            return
        held = read_config(self.path)
        keys = [key for key in differences(held, config) if key != "run_dir"]
        if not keys:
            return
        old, new = to_dict(held), to_dict(config)
        reason = self._why_refused(keys, held, config)
        if reason:
            shown = ", ".join(f"{key} ({_at(old, key)} there, {_at(new, key)} now)" for key in keys[:8])
            more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
            raise UserError(
                f"{self.path}: holds a run with another configuration; these keys differ: {shown}{more}; {reason}; "
                "give another folder with --run_dir, or delete this one"
            )
        step = max((row["step"] for row in read_metrics(self.path)), default=0)
        change = {"step": step, "changed": {key: [_at(old, key), _at(new, key)] for key in keys}}
        with atomic_write(self.path / _HISTORY) as stream:
            stream.write(self._history() + json.dumps(change) + "\n")
        save_resolved(config, file)

    def _history(self) -> str:
        file = self.path / _HISTORY
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def _why_refused(self, keys: Sequence[str], held: Config, config: Config) -> str:
        """Why a run that has started cannot be resumed with these changes; empty if it can."""
        fixed = [key for key in keys if key not in MAY_CHANGE]
        if fixed:
            return f"{fixed[0]} decides what has been done already"
        if "train.iterations" in keys:
            if held.optim.schedule != "constant":
                return (
                    f"the learning rates of optim.schedule {held.optim.schedule} depend on train.iterations, so that "
                    "those of the iterations done would have been others"
                )
            done = max((row.get("iteration", 0) for row in read_metrics(self.path)), default=0)
            if config.train.iterations < done:
                return f"{done} iterations have been done"
        return ""

    def log(self, row: Mapping[str, Any]) -> None:
        """Appends a row to metrics.jsonl and its numbers to the TensorBoard events.

        Args:
            row: values by name, with the step number as `step`. NumPy and JAX scalars are accepted; numbers that are
                not finite are written as null.
        """
        plain = {key: _plain(value) for key, value in row.items()}
        self._append("metrics.jsonl", [plain])
        with naming(self.path / "tensorboard"):
            if self._events is None:
                self._events = self._open_events()
            for key, value in plain.items():
                if key != "step" and isinstance(value, int | float):
                    event = Event(wall_time=time.time(), step=plain["step"], summary=scalar(key, value))
                    self._events.write_event(event)
            self._events.flush()

    def _open_events(self) -> EventsWriter:
        # Not SummaryWriter: a kill would lose its queue, although the checkpoint of those rows is already complete.
        folder = self.path / "tensorboard"
        folder.mkdir(exist_ok=True)
        # The file name holds the time in seconds: without a number, a quick restart would overwrite the previous file.
        events = EventsWriter(str(folder / "events"), f".{len(list(folder.iterdir())):04d}")
        if self._purge is not None:
            start = SessionLog(status=SessionLog.START)
            events.write_event(Event(wall_time=time.time(), step=self._purge, session_log=start))
        return events

    def log_trajectories(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Appends trajectories to trajectories.jsonl; each row has its `step`."""
        self._append("trajectories.jsonl", [{key: _plain(value) for key, value in row.items()} for row in rows])

    def log_levels(self, step: int, stage: str, levels: Sequence[str]) -> None:
        """Appends the ids of the distinct levels played in a stage, see `agentrl_jax.evaluate.seen`."""
        self._append("levels.jsonl", [{"step": step, "stage": stage, "levels": sorted(set(levels))}])

    def log_failures(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Appends episodes whose environment failed to failures.jsonl; each row has its `step`."""
        self._append("failures.jsonl", rows)

    def _append(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            if not _is_row(name, row):
                raise ValueError(
                    f"a row of {name} has step {row.get('step')!r}, stage {row.get('stage')!r} and iteration "
                    f"{row.get('iteration')!r}, expected whole numbers and, in metrics.jsonl, the stage imitation or rl"
                )
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = open(self.path / name, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        with naming(self.path / name):
            file.write("".join(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())

    def truncate(self, step: int) -> list[str]:
        """Rolls the records back to a checkpoint: drops later rows, which will be written again, and later events.

        A last line that was cut off by a kill is dropped. A file with any other invalid line is first copied to
        NAME.before-N; its valid rows stay.

        Args:
            step: step of the checkpoint; -1 if there is none.

        Returns:
            What was copied and why, one sentence each.

        Raises:
            UserError: there is no checkpoint, although metrics.jsonl holds RL iterations, which would be lost.
        """
        self._close_files()
        found = {name: read_rows(self.path / name) for name in RECORDS if (self.path / name).exists()}
        learned = [row for row in read_metrics(self.path) if row["stage"] == "rl"]
        if step < 0 and learned:
            raise UserError(
                f"{self.path}: holds {len(learned)} iterations in metrics.jsonl but no complete checkpoint in "
                "checkpoints, without which they would be lost; put the checkpoints back, or give another folder with "
                "--run_dir"
            )
        said = []
        for name, records in found.items():
            file = self.path / name
            kept = [line for line, row in records.rows if row["step"] <= step]
            if records.bad:
                copy = _copy_aside(file)
                said.append(
                    f"{file}: line {records.bad[0]} is no row of a run"
                    + (f", and {len(records.bad) - 1} more" if len(records.bad) > 1 else "")
                    + f"; the run goes on without it, and {copy.name} is the file as it was"
                )
            elif not records.torn and len(kept) == len(records.rows):
                continue
            with atomic_write(file, binary=True) as rewritten:
                rewritten.write(b"".join(kept))
        self._purge = step + 1
        return said

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl so far."""
        return read_metrics(self.path)

    def levels(self) -> list[dict[str, Any]]:
        """The rows of levels.jsonl so far."""
        return read_levels(self.path)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes summary.json atomically: a reader sees the old file or the new one."""
        text = json.dumps(_plain(summary), indent=2, allow_nan=False, ensure_ascii=False)
        with atomic_write(self.path / "summary.json") as file:
            file.write(text + "\n")

    def close(self) -> None:
        """Closes the files and unlocks the folder."""
        try:
            self._close_files()
        finally:
            self._lock.close()

    def _close_files(self) -> None:
        with contextlib.ExitStack() as stack:  # closing writes what could not be written before, and may fail again
            for name, file in self._files.items():
                stack.enter_context(naming(self.path / name))
                stack.callback(file.close)
            if self._events is not None:
                stack.enter_context(naming(self.path / "tensorboard"))
                stack.callback(self._events.close)
            self._files, self._events = {}, None

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a run's folder."""
    return (Path(path) / _CONFIG).is_file()


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl in a run's folder so far; the run may still be going on."""
    return [row for _, row in read_rows(Path(path) / "metrics.jsonl").rows]


def read_levels(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The rows of levels.jsonl in a run's folder so far."""
    return [row for _, row in read_rows(Path(path) / "levels.jsonl").rows]


def read_config(path: str | os.PathLike[str]) -> Config:
    """The configuration of the run in a folder.

    Raises:
        UserError: there is no such folder, or it holds no run.
    """
    if not is_run(path):
        folder = Path(path)
        what = (
            f"holds no {_CONFIG}" if folder.is_dir() else "that is no folder" if folder.exists() else "no such folder"
        )
        raise UserError(f"{path}: {what}; give the folder of a run that `agentrl train` made, e.g. runs/demo")
    return load_resolved(Path(path) / _CONFIG)


@dataclasses.dataclass(frozen=True)
class Records:
    """The contents of a JSON-lines file of a run.

    Attributes:
        rows: each valid line as text, with its parsed value.
        bad: numbers of the invalid lines, from 1.
        torn: the last line was cut off, for example by a kill during the write.
    """

    rows: list[tuple[bytes, dict[str, Any]]]
    bad: list[int]
    torn: bool


def read_rows(file: Path) -> Records:
    """Reads one of `RECORDS`; a missing file holds nothing.

    A row is a JSON object in UTF-8 with an integer `step`. A row of metrics.jsonl also has its `stage`, and in RL its
    `iteration`. A row of levels.jsonl has its `stage` and `levels`, a list of strings.
    """
    lines = file.read_bytes().split(b"\n") if file.exists() else [b""]
    rows, bad = [], []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            row = None
        if _is_row(file.name, row):
            rows.append((line + b"\n", row))
        else:
            bad.append(number)
    return Records(rows, bad, torn=bool(lines[-1]))


def _is_row(name: str, row: Any) -> bool:
    if not isinstance(row, dict) or not _is_number(row.get("step")):
        return False
    if name == "levels.jsonl":
        levels = row.get("levels")
        return isinstance(row.get("stage"), str) and isinstance(levels, list) and all(type(x) is str for x in levels)
    if name != "metrics.jsonl":
        return True
    return row.get("stage") == "imitation" or (row.get("stage") == "rl" and _is_number(row.get("iteration")))


def _is_number(value: Any) -> bool:
    """Whether a value can number a step or an iteration."""
    return type(value) is int and 0 <= value < 2**31


def _copy_aside(file: Path) -> Path:
    """Copies a file beside itself, under the first free name NAME.before-N."""
    names = (file.with_name(f"{file.name}.before-{n}") for n in itertools.count(1))
    copy = next(name for name in names if not name.exists())
    with atomic_write(copy, binary=True) as stream:
        stream.write(file.read_bytes())
    return copy


def _plain(value: Any) -> Any:
    """Mappings, lists, text and Python numbers of the same value; null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return _plain(np.asarray(value).tolist())


def _at(tree: Any, key: str) -> Any:
    for step in key.split("."):
        if isinstance(tree, list):
            tree = tree[int(step)] if int(step) < len(tree) else "absent"
        else:
            tree = tree.get(step, "absent") if isinstance(tree, dict) else "absent"
        if tree == "absent":
            break
    return json.dumps(tree) if tree != "absent" else tree
