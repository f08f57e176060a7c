"""Plays the rollout of an iteration of a run again, or learns up to a checkpoint, and compares the bits."""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath

from agentrl_jax.config import Config, differences
from agentrl_jax.config.defaults import with_defaults
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.io import files_under
from agentrl_jax.parallel import hosts
from agentrl_jax.rollout.transcript import transcripts
from agentrl_jax.runs.checkpoint import Checkpoints
from agentrl_jax.runs.config_history import HISTORY, ROUNDING, ConfigHistory, read_history
from agentrl_jax.runs.live import LiveView
from agentrl_jax.runs.records import RECORDS, read_rows, truncate
from agentrl_jax.runs.remote import CHECKPOINTS, copy_file, local_copy
from agentrl_jax.runs.replay_start import replay_start
from agentrl_jax.runs.rollout_records import (
    Header,
    RolloutRecord,
    read_record,
    record_path,
    recorded_iterations,
    sampled_fields,
)
from agentrl_jax.runs.run_folder import RunFolder, read_config, write_config
from agentrl_jax.setup.own_rules import with_own_rules
from agentrl_jax.terminal import Terminal
from agentrl_jax.train.roll_back import RollBacks
from agentrl_jax.train.run import Run


@dataclasses.dataclass(frozen=True)
class ReplayedRow:
    """A recorded episode that was played again."""

    episode: dict[str, Any]
    """As text, see `rollout.transcript`."""
    different: tuple[str, ...]
    """Fields of the record, such as tokens or logprob, that differ in this row by a bit or more."""
    equal_rows: int
    """Recorded rows of the iteration that are equal in every field."""
    rows: int
    """Recorded rows of the iteration."""
    start: str
    """What the replay started from."""


def replay_row(run: str | os.PathLike[str], iteration: int, row: int, console: Terminal) -> ReplayedRow:
    """Plays an iteration again, from the nearest checkpoint before it, and compares its recorded episodes.

    Iterations between that checkpoint and the rollout are learned again, in a temporary folder; without a checkpoint,
    so is everything before. The folder of the run is only read. Bits are equal on the machine of the run, or an equal
    one, with the same versions; a service must answer as it did then.

    Raises:
        UserError: the folder holds no run, the iteration or row was not recorded, or the run cannot be played here.
    """
    with local_copy(str(run)) as folder:
        return _replay_row(folder, str(run), iteration, row, console)


def _replay_row(folder: Path, run: str, iteration: int, row: int, console: Terminal) -> ReplayedRow:
    """Replays from the records in a local folder; checkpoints are read where the run is."""
    config = read_config(folder)
    known = recorded_iterations(folder)
    if iteration not in known:
        shown = ", ".join(map(str, known[-8:])) or "none; train with train.trajectories_every above 0"
        raise UserError.of("--iteration", iteration, f"which is not recorded in {run}; recorded are (last) {shown}")
    record = read_record(record_path(folder, iteration))
    if record.header.evaluation is not None:
        raise UserError.at(
            run,
            f"holds an evaluation of {record.header.evaluation.agent}, but only episodes of training can be replayed; "
            "evaluate again with agentrl eval and --record",
            record.header.evaluation.agent,
        )
    if not 0 <= row < len(record.task):
        raise UserError.of("--row", row, f"expected 0 to {len(record.task) - 1}")
    with tempfile.TemporaryDirectory(prefix="agentrl-replay-") as scratch:
        config, start = _begin(folder, run, Path(scratch), record.header)
        with refusals():
            again = Run(with_defaults(with_own_rules(config, unchanged=True)))
        with (
            RunFolder(again.config) as copy,
            Checkpoints(copy.checkpoints, keep=config.train.keep) as checkpoints,
            LiveView(iteration, title=f"replay of {Path(run).name}", console=console) as view,
            contextlib.closing(again),
        ):
            view.note(f"replaying iteration {iteration} from {start}")
            trajectory = again.play(copy, checkpoints, view, record.header.step).trajectory
            rows = hosts.fetch(jax.tree.map(lambda x: x[: len(record.task)], trajectory))
    different = _different(record, rows)
    names = record.header.tasks
    return ReplayedRow(
        episode=transcripts(jax.tree.map(lambda x: x[row : row + 1], rows), again.parts.tokenizer, names)[0],
        different=tuple(name for name, unequal in different.items() if unequal[row]),
        equal_rows=int((~np.any(list(different.values()), axis=0)).sum()),
        rows=len(record.task),
        start=start,
    )


def rebuild(run: str | os.PathLike[str], step: int, out: str, console: Terminal) -> list[str]:
    """Writes the folder `out` of a run as it was at the checkpoint of a step that was not kept.

    The iterations from the nearest checkpoint before it are learned again. Returns the metrics of the step's row that
    are not those of the run, bit for bit; times aside.

    Raises:
        UserError: the folder holds no run, or the step is none of its iterations, or `out` exists, or the run cannot be
            played here.
    """
    if os.path.exists(out):
        raise UserError.of("--out", out, "which exists; give a new folder")
    with local_copy(str(run)) as folder:
        read_config(folder)  # says best what is wrong with the folder
        rows = {row["step"]: row for _, row in read_rows(folder / "metrics.jsonl").rows if row["stage"] == "rl"}
        if step not in rows:
            known = f"expected {min(rows)} to {max(rows)}" if rows else "but the run has none yet"
            raise UserError.of("--rebuild", step, f"which is no step of an iteration of {run}; {known}")
        backs = enumerate(RollBacks(folder / "roll_backs").records, 1)
        place = _Place(rows[step]["iteration"], step, max((n for n, back in backs if back["step"] < step), default=0))
        os.makedirs(out)
        config, start = _begin(folder, str(run), Path(out), place)
        with refusals():
            again = Run(with_defaults(with_own_rules(config, unchanged=True)))
        with (
            RunFolder(again.config) as copy,
            Checkpoints(copy.checkpoints, keep=config.train.keep) as checkpoints,
            LiveView(place.iteration, title=f"rebuilding {Path(run).name}", console=console) as view,
            contextlib.closing(again),
        ):
            view.note(f"rebuilding the checkpoint of step {step} from {start}")
            again.rebuild(copy, checkpoints, view, place.step)
            found = copy.metrics()[-1]
    keys = [key for key in {**rows[step], **found} if not key.startswith("time/")]
    return [key for key in keys if found.get(key) != rows[step].get(key)]


class _Place(NamedTuple):
    """A place in a run: an iteration, its step, and the roll-backs before it."""

    iteration: int
    step: int
    roll_backs: int


def _begin(run: Path, name: str, scratch: Path, place: Header | _Place) -> tuple[Config, str]:
    """Copies a run as it was before a rollout; returns its configuration then, and in words where it goes on."""
    history = ConfigHistory(read_config(run), read_history(run))
    config = history.at(place.step)
    write_config(scratch, config)
    if (run / HISTORY).exists():
        shutil.copy(run / HISTORY, scratch)
    begun = _copy_before(run, f"{name}/{CHECKPOINTS}", scratch, place)
    start = "the start of the run, because no checkpoint before it is left"
    if begun is not None:
        start = f"the checkpoint of step {begun}"
    if moved := sorted(ROUNDING.intersection(differences(history.at((begun or 0) + 1), config))):
        start += f", with the {', '.join(moved)} of that iteration throughout, which changed on the way to it"
    return config.replace(run_dir=str(scratch)), start


def _copy_before(run: Path, saved: str, scratch: Path, header: Header | _Place) -> int | None:
    """Copies what a run had before a rollout: records, roll-backs, the newest checkpoint in `saved`.

    Returns the step of the checkpoint; None without one.
    """
    with Checkpoints(saved, keep=None) as checkpoints:
        step = replay_start(
            run,
            header.iteration,
            header.step,
            header.roll_backs,
            checkpoints.steps(),
            lambda step: checkpoints.meta(step).get("roll_backs", 0),
        )
    if step is None:
        return None
    for earlier in range(1, header.roll_backs + 1):
        (scratch / "roll_backs").mkdir(exist_ok=True)
        shutil.copy(run / "roll_backs" / f"{earlier}.json", scratch / "roll_backs")
    for name in RECORDS:
        if (run / name).exists():
            shutil.copy(run / name, scratch)
            truncate(scratch / name, step)
    newest = epath.Path(saved) / str(step)
    for file in files_under(newest):
        copy_file(file, scratch / CHECKPOINTS / str(step) / file.relative_to(newest).as_posix())
    return step


def _different(record: RolloutRecord, rows: Any) -> dict[str, np.ndarray]:
    """For each field that a rollout has, which rows of the record differ from it."""
    return {name: _unequal(getattr(record, name), value) for name, value in sampled_fields(rows).items()}


def _unequal(recorded: np.ndarray, played: np.ndarray) -> np.ndarray:
    """Rows whose bytes differ; all where even the shapes do."""
    if recorded.shape != played.shape or recorded.dtype != played.dtype:
        return np.ones(len(recorded), bool)
    return np.array([a.tobytes() != b.tobytes() for a, b in zip(recorded, played, strict=True)])
