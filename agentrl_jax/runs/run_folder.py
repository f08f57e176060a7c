"""The folder of a run: what it holds, who may write to it, and how it is rolled back to a checkpoint.

All processes of a run open it, in a file system that they share; only the writer (see `parallel.hosts`) writes.

    config.yaml          every value of the configuration; once the folder holds a metric or a checkpoint, `agentrl
                         train` refuses a configuration that differs in keys that may not change
    config.history.jsonl its changes, see agentrl_jax.runs.config_history
    metrics.jsonl        one row per step: first chunks of imitation, then iterations
    trajectories.jsonl   trajectories as text, written every few iterations
    rollouts/            the same trajectories token by token, see agentrl_jax.runs.rollout_records
    levels.jsonl         the levels of every batch and of the evaluation, see agentrl_jax.evaluate.seen
    provenance.jsonl     a row for each process: version, host, date and command, see agentrl_jax.runs.provenance
    set_aside/           what was recorded after a checkpoint from which the run then went on
    failures.jsonl       episodes whose environment failed
    explored/            what rounds of other stages have found, see agentrl_jax.train.explored
    dagger/              the plans of each round of imitation, see agentrl_jax.train.dagger
    tensorboard/         the numbers of metrics.jsonl as TensorBoard events
    checkpoints/         see agentrl_jax.runs.checkpoint
    curves.png, summary.json; of earlier ends, curves.at-ITERATION.png and summary.at-ITERATION.json

Rows carry their step as `step`. A row of step k is written before checkpoint k is saved. A run that was killed
therefore finds every row up to its last checkpoint, and moves the later ones to set_aside/.
"""

import contextlib
import fcntl
import glob
import itertools
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from agentrl_jax.config import Config, HostsConfig, load_resolved, save_resolved
from agentrl_jax.errors import BadValue, UserError
from agentrl_jax.io import FULL, atomic_write, naming, try_writing
from agentrl_jax.parallel import hosts
from agentrl_jax.runs import config_history, provenance, records, rollout_records
from agentrl_jax.runs.checkpoint import complete_steps, refuse_older
from agentrl_jax.runs.loggers import Logger, TensorBoard, WandB
from agentrl_jax.runs.records import RECORDS, read_rows, to_plain
from agentrl_jax.runs.remote import CHECKPOINTS, Mirror, is_remote
from agentrl_jax.runs.rollout_records import ROLLOUTS, RolloutRecord

CONFIG, _LOCK, _ASIDE = "config.yaml", ".lock", "set_aside"
_TRIES = 3
"""`agentrl runs` holds the lock of a run for a moment, to see whether a process has it."""

SEEN_SECONDS = 5.0
"""Time in which the lock of process 0 becomes visible to the other processes."""


class RunFolder:
    """An open run folder, locked by one run at a time.

    `place` is the folder as it was given, `path` where its files are written (a local copy if `place` is in an object
    store), and `checkpoints` the folder of checkpoints.

    Methods that return something must be called on all processes; others do nothing but on the writer.
    """

    def __init__(
        self,
        config: Config,
        path: str | os.PathLike[str] | None = None,
        *,
        accept_changes: bool = False,
        rules_changed: bool = False,
        loggers: Sequence[Logger] = (),
    ):
        """Creates the folder of a run or reopens it; `path` defaults to `config.run_dir`.

        With `accept_changes` the run goes on with other values of the keys that `config_history.FROM_NOW_ON` names,
        with `rules_changed` with other code of the user's rules.
        `loggers` get the rows of metrics.jsonl besides those that `train.loggers` names.

        Raises:
            UserError: the folder holds another configuration or files that are not a run's, cannot be written, is in
                use, or is not the same on all hosts.
        """
        self.place = place = os.path.expanduser(path if path is not None else config.run_dir)
        _check_place(place)
        self._accepted = {"accept": accept_changes, "rules_changed": rules_changed}
        self._chunks = config.rows_before_rl
        self._iterations, self._changed = config.train.iterations, False
        self._mirror: Mirror | None = None
        self.path, self.checkpoints = Path(place), os.path.join(place, CHECKPOINTS)
        if is_remote(place):
            self._mirror = Mirror(place) if hosts.is_writer() else None
            self._scratch = tempfile.TemporaryDirectory(prefix="agentrl-run-")  # for what other processes write
            self.path = self._mirror.local if self._mirror else Path(self._scratch.name)
        self._files: dict[str, IO[str]] = {}
        self._loggers = [*self._own_loggers(config), *loggers] if hosts.is_writer() else []
        self._rollouts: rollout_records.RolloutWriter | None = None
        self._lock: IO[str] | None = None
        stamp = hosts.from_writer(lambda: self._open(config.replace(hosts=HostsConfig())))
        seen_by = hosts.gather(is_remote(place) or self._sees(stamp))
        if alone := [i for i, seen in enumerate(seen_by) if not seen]:
            raise UserError.at(
                self.path,
                f"process {alone[0]} does not see the folder of process 0; give a --run_dir in a file system that all "
                "hosts share",
                alone[0],
            )

    def _own_loggers(self, config: Config) -> Iterator[Logger]:
        if "tensorboard" in config.train.loggers:
            yield TensorBoard(self.path, self._chunks)
        if "wandb" in config.train.loggers:
            yield WandB(self.path, os.path.basename(os.path.abspath(self.path)), config)

    def _open(self, config: Config) -> str:
        """Locks and checks the folder, on the writer; returns the new text of the lock, by which others know it."""
        try:
            self._check_own()
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / _LOCK, "a")  # noqa: SIM115 (open for as long as the run)
        except OSError as error:
            raise UserError.at(
                self.path, f"cannot be used as run folder ({error.strerror}), expected write access; change --run_dir"
            ) from error
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.close)
            try:
                _lock(self._lock)
            except BlockingIOError:
                raise UserError.at(
                    self.path, "another process is writing to it; stop it or wait, or use another --run_dir"
                ) from None
            except OSError as error:
                raise UserError.at(
                    self.path,
                    f"cannot be locked ({error.strerror}), expected a file system with locks (flock); change "
                    "--run_dir, or how it is mounted",
                ) from error
            self._check_writable()
            for name in RECORDS:
                records.join(self.path / name)
            self._check_config(config)
            stack.pop_all()  # the lock stays open
        stamp = secrets.token_hex(8)
        self._lock.truncate(0)
        self._lock.write(stamp)
        self._lock.flush()
        os.fsync(self._lock.fileno())  # over NFS other hosts see it only then
        return stamp

    def _sees(self, stamp: str) -> bool:
        """Whether this process sees the lock; a file system of a network may show it late."""
        end = time.monotonic() + SEEN_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if (self.path / _LOCK).read_text() == stamp:
                    return True
            if time.monotonic() > end:
                return False
            time.sleep(0.2)

    def _check_writable(self) -> None:
        """Checks at the start that all of the folder can be written, since later a failure would waste iterations."""
        parts = [
            self.path / CHECKPOINTS,
            *(
                self.path / name
                for name in ("tensorboard", "roll_backs", "dagger", "explored", _ASIDE, ROLLOUTS, *RECORDS)
            ),
        ]
        for part in [self.path, *(part for part in parts if part.exists())]:
            try:
                try_writing(part)
            except OSError as error:
                if error.errno in FULL:
                    raise
                raise UserError.at(
                    part,
                    f"cannot be written ({error.strerror}), expected write access; make it writable, or give another "
                    "folder with --run_dir",
                ) from error

    def _check_own(self) -> None:
        """Refuses a folder with files that are not a run's; leaves nothing in it."""
        if (self.path / CONFIG).exists() or not self.path.is_dir():
            return
        if others := {entry.name for entry in self.path.iterdir()} - {_LOCK, f"{CONFIG}.tmp"}:
            raise UserError.at(
                self.path,
                f"holds {min(others)!r} but no {CONFIG}, so it is no run folder; change --run_dir",
                min(others),
            )

    def _check_config(self, config: Config) -> None:
        """Writes the configuration, or refuses it if the folder holds a run that it does not belong to."""
        self._check_own()
        file = self.path / CONFIG
        if (self.path / "metrics.jsonl").exists() or any((self.path / CHECKPOINTS).glob("*")):
            stored = read_config(self.path)
            keys = config_history.changed_keys(stored, config)
            self._changed = bool(keys)
            if not keys:
                return
            done = max((row.get("iteration", 0) for row in self._rows("metrics.jsonl")), default=0)
            config_history.check_changes(self.path, keys, stored, config, done, **self._accepted)
            refuse_older(self.checkpoints)  # before anything is written: the version that can go on reads it, too
            step = max(complete_steps(self.checkpoints), default=0)  # where the run goes on
            config_history.record_changes(self.path, step, keys, stored, config)
        elif rollout_records.of_evaluation(self.path):
            raise UserError.at(self.path, "holds an evaluation that agentrl eval recorded; give another --run_dir")
        save_resolved(config, file)

    def log(self, row: Mapping[str, Any]) -> None:
        """Appends a row to metrics.jsonl and gives it to the loggers.

        NumPy and JAX scalars are accepted; numbers that are not finite are written as null.
        """
        if not hosts.is_writer():
            return
        plain = to_plain(row)
        self._append("metrics.jsonl", [plain])
        for logger in self._loggers:
            logger.log(plain)

    def log_trajectories(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Appends trajectories to trajectories.jsonl; each row has its `step` and its `iteration`."""
        self._append("trajectories.jsonl", to_plain(rows))

    def log_rollout(self, record: RolloutRecord, most_bytes: int) -> None:
        """Writes the file of an iteration into rollouts/, and deletes its oldest ones beyond `most_bytes`."""
        if hosts.is_writer():
            self._rollouts = self._rollouts or rollout_records.RolloutWriter(self.path)
            self._rollouts.write(record, most_bytes)

    def log_levels(self, step: int, stage: str, levels: Sequence[str], *, known: bool = True) -> None:
        """Appends the ids of the distinct levels played in a stage, see `agentrl_jax.evaluate.seen`.

        If not `known`, there were others, nobody knows which.
        """
        self._append("levels.jsonl", [_levels_row(step, stage, levels, known)])

    def log_levels_once(self, step: int, stage: str, levels: Sequence[str], *, known: bool = True) -> None:
        """As `log_levels`, but a row that is there already, from before a kill, is not written again."""
        if _levels_row(step, stage, levels, known) not in self.levels():
            self.log_levels(step, stage, levels, known=known)

    def log_process(self, step: int, **found: Any) -> None:
        """Appends to provenance.jsonl what this process is, which goes on from a step, and what else was `found`."""
        if hosts.is_writer():
            with naming(self.path / provenance.PROVENANCE):
                provenance.append(self.path, {"step": step, **provenance.of_process(), **found})

    def log_failures(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Appends episodes whose environment failed to failures.jsonl; each row has its `step`."""
        self._append("failures.jsonl", rows)

    def _append(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if not hosts.is_writer():
            return
        for row in rows:
            if not records.is_row(name, row):
                raise BadValue(
                    f"a row of {name} has step {row.get('step')!r}, stage {row.get('stage')!r} and iteration "
                    f"{row.get('iteration')!r}, expected integers and, in metrics.jsonl, the stage "
                    f"rl, or one of {', '.join(records.SUPERVISED)}",
                    key="row",
                    value=name,
                )
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = open(self.path / name, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)
        with naming(self.path / name):
            file.write("".join(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())

    def truncate(self, step: int) -> list[str]:
        """Rolls the records back to the checkpoint of a step, or to nothing for -1; later rows will be written again.

        What is later is kept in a folder of set_aside/. Returns a sentence about that, about each file with invalid
        lines, and about each recorded rollout that cannot be read.

        Raises:
            UserError: there is no checkpoint, although metrics.jsonl holds RL iterations, which would be lost.
        """
        return hosts.from_writer(lambda: self._truncate(step))

    def _truncate(self, step: int) -> list[str]:
        self._close_files()
        learned = sum(row["stage"] == "rl" for row in self._rows("metrics.jsonl"))
        if step < 0 and learned:
            raise UserError.at(
                self.path,
                f"holds {learned} iterations in metrics.jsonl but no complete checkpoint in checkpoints, without "
                "which they would be lost; put the checkpoints back, or give another folder with --run_dir",
                learned,
            )
        files = [self.path / name for name in RECORDS if (self.path / name).exists()]
        places = (self.path / _ASIDE / f"after-{max(step, 0)}.{n}" for n in itertools.count(1))
        aside = next(place for place in places if not place.exists())
        copied = [records.truncate(file, step, aside) for file in files]
        damaged = rollout_records.move_after(self.path, step, aside)
        if self._mirror is not None:
            self._mirror.rewritten()
        self._rollouts = None
        for logger in self._loggers:
            logger.go_on(step, void=aside.exists())
        moved = [f"what was recorded after it is kept in {aside.relative_to(self.path)}"] if aside.exists() else []
        return [line for line in copied if line] + damaged + moved

    def processes(self) -> list[dict[str, Any]]:
        """The rows of provenance.jsonl so far."""
        return hosts.from_writer(lambda: provenance.read(self.path))

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl so far."""
        return hosts.from_writer(lambda: self._rows("metrics.jsonl"))

    def levels(self) -> list[dict[str, Any]]:
        """The rows of levels.jsonl so far."""
        return hosts.from_writer(lambda: self._rows("levels.jsonl"))

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return [row for _, row in read_rows(self.path / name).rows]

    def history(self, config: Config) -> config_history.ConfigHistory:
        """The configuration at each step of the run, which goes on with `config`; raises UserError."""
        return config_history.ConfigHistory(config, hosts.from_writer(lambda: config_history.read_history(self.path)))

    def upload(self) -> None:
        """Uploads the records of a folder in an object store; call it before a checkpoint is saved."""
        if self._mirror is not None:
            self._mirror.upload()
            for logger in self._loggers:
                if isinstance(logger, TensorBoard):
                    logger.limit_file()

    def summary(self) -> dict[str, Any] | None:
        """The summary of a run that has ended with its configuration; None if there is something left to do."""
        return hosts.from_writer(self._summary)

    def _summary(self) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads((self.path / "summary.json").read_bytes())
            ended = self._chunks + found["iterations"] == max(complete_steps(self.checkpoints), default=-1)
            if ended and not self._changed and (found["iterations"] == self._iterations or found["stopped_by"]):
                return found
        return None

    def keep_earlier_end(self, iterations: int) -> None:
        """Keeps the summary of an earlier end, of a run that has gone on to `iterations` since, and its curves.

        They are summary.at-ITERATION.json and curves.at-ITERATION.png.
        """
        if not hosts.is_writer():
            return
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # none yet, or none that is readable
            before = int(json.loads((self.path / "summary.json").read_bytes())["iterations"])
            for name in ("curves.png", "summary.json") if before != iterations else ():
                stem, _, kind = name.partition(".")
                if (self.path / name).exists():
                    (self.path / name).rename(self.path / f"{stem}.at-{before}.{kind}")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes summary.json atomically: a reader sees the old file or the new one. The run has ended then."""
        if hosts.is_writer():
            text = json.dumps(to_plain(summary), indent=2, allow_nan=False, ensure_ascii=False)
            with atomic_write(self.path / "summary.json") as file:
                file.write(text + "\n")

    def close(self) -> None:
        """Closes the files and unlocks the folder."""
        with contextlib.ExitStack() as stack:
            if self._mirror is not None:
                stack.callback(self._mirror.close)
            if self._lock is not None:
                stack.callback(self._lock.close)
            for logger in self._loggers:
                stack.callback(logger.close)
            self._close_files()

    def _close_files(self) -> None:
        with contextlib.ExitStack() as stack:  # closing writes what could not be written before, and may fail again
            for name, file in self._files.items():
                stack.enter_context(naming(self.path / name))
                stack.callback(file.close)
            self._files = {}

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_place(place: str) -> None:
    """Refuses a folder whose checkpoints could not be read again."""
    if not place:
        raise UserError("run_dir is empty; name the folder of the run with --run_dir", key="run_dir", value="")
    if place.startswith("~"):
        raise UserError.of("run_dir", place, "but there is no such user here; write the whole path")
    if glob.has_magic(place if is_remote(place) else os.path.abspath(place)):
        why = "whose *, ? or [ the library that writes checkpoints reads as a pattern; give another folder"
        raise UserError.of("run_dir", place, why)


def _lock(file: IO[str]) -> None:
    """Locks a file until the process ends; raises OSError if it is locked, but not for the moment of a listing."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.1)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a run's folder."""
    return (Path(path) / CONFIG).is_file()


def read_config(path: str | os.PathLike[str]) -> Config:
    """The configuration of the run in a folder.

    Raises:
        UserError: there is no such folder, or it holds no run.
    """
    if is_remote(str(path)):
        raise UserError.at(path, "is in an object store, where this command does not look; copy it to a disk first")
    folder = Path(path)
    if not is_run(folder):
        what = f"holds no {CONFIG}" if folder.is_dir() else "that is no folder" if folder.exists() else "no such folder"
        raise UserError.at(path, f"{what}; give the folder of a run that `agentrl train` made, e.g. runs/demo", what)
    return load_resolved(folder / CONFIG)


def write_config(path: str | os.PathLike[str], config: Config) -> None:
    """Writes the configuration that `read_config` reads, into a folder that is no run's but is read like one.

    Raises:
        OSError: it cannot be written.
    """
    save_resolved(config, Path(path) / CONFIG)


def _levels_row(step: int, stage: str, levels: Sequence[str], known: bool) -> dict[str, Any]:
    return {"step": step, "stage": stage, "levels": sorted(set(levels)), **({} if known else {"known": False})}
