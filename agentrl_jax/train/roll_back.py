"""Rolls a run back to the last good checkpoint when it collapses, and records the discarded iterations.

A roll-back is recorded before anything is deleted: roll_backs/N.json is written atomically, and the checkpoints that it
discards are known because they are older than it. A process killed at any moment therefore resumes from the same
checkpoint, with the same keys and rates, as one that was not killed.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl_jax.algos.collapse import ALARMS
from agentrl_jax.config import Config, TrainConfig
from agentrl_jax.errors import UserError
from agentrl_jax.io import atomic_write
from agentrl_jax.parallel import hosts
from agentrl_jax.runs.checkpoint import Checkpoints


def kept_checkpoints(config: TrainConfig) -> int:
    """How many checkpoints a run keeps: with roll-backs, enough to reach back before the first value of an alarm.

    Alarms need several values in a row; meanwhile the run may save states that are already bad.
    """
    if config.on_collapse != "roll_back":
        return config.keep
    reach = max(
        max(alarm.patience, alarm.longest) * (config.validate_every if alarm.metric.startswith("validation/") else 1)
        for alarm in ALARMS
        if alarm.collapse
    )
    return max(config.keep, math.ceil(reach / config.checkpoint_every) + 1)


def is_kept_for_good(config: Config, step: int) -> bool:
    """Whether the checkpoint of a step stays, by train.keep_every."""
    every, iteration = config.train.keep_every, step - config.rows_before_rl
    return every > 0 and iteration > 0 and iteration % every == 0


class RollBacks:
    """The roll-backs of a run so far.

    Each record has: alarm, iteration (at which it was raised), began (first bad iteration), step (of the checkpoint
    restored), totals (up to then) and rows (discarded rows of metrics.jsonl).
    """

    def __init__(self, folder: Path):
        """Reads the roll-backs of a run; `folder` is created with the first one. Raises a `UserError`."""
        self.folder = folder
        self.records: list[dict[str, Any]] = hosts.from_writer(self._read)

    def _read(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        while (file := self._file(len(records) + 1)).exists():
            try:
                records.append(json.loads(file.read_text(encoding="utf-8")))
            except ValueError as error:
                raise UserError.at(file, f"cannot be read ({error}); restore the file, or use a new run") from error
        return records

    def _file(self, number: int) -> Path:
        return self.folder / f"{number}.json"

    @property
    def count(self) -> int:
        """Number of roll-backs so far."""
        return len(self.records)

    def add(self, record: Mapping[str, Any]) -> None:
        """Records a roll-back."""
        if hosts.is_writer():
            self.folder.mkdir(exist_ok=True)
            with atomic_write(self._file(self.count + 1)) as file:
                json.dump(record, file)
        self.records.append(dict(record))

    def newest_step(self, checkpoints: Checkpoints) -> int | None:
        """Step of the newest checkpoint that no roll-back discarded, or None; deletes the discarded ones."""
        return hosts.from_writer(lambda: self._newest_step(checkpoints))

    def _newest_step(self, checkpoints: Checkpoints) -> int | None:
        while (step := checkpoints.latest_step()) is not None:
            known = checkpoints.meta(step).get("roll_backs", 0)
            if all(step <= record["step"] for record in self.records[known:]):
                break
            checkpoints.delete(step)
        return step

    def summary(self) -> list[dict[str, Any]]:
        """Returns the entries for summary.json."""
        return [{name: record[name] for name in ("alarm", "iteration", "began", "step")} for record in self.records]
