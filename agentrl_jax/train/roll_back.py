"""Going back to the last good checkpoint when a run collapses, and what is kept of the iterations given up.

A roll-back is on record before anything is taken away: roll_backs/N.json is written whole or not at all, and the
checkpoints that it gave up are known by having been made before it. A process killed at any moment therefore goes on
from the same checkpoint, with the same keys and rates, as one that was not.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl_jax.algos.collapse import ALARMS
from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import UserError
from agentrl_jax.io import atomic_write
from agentrl_jax.runs.checkpoint import Checkpoints


def kept_checkpoints(config: TrainConfig) -> int:
    """How many of the newest checkpoints a run keeps: with roll-backs, as many as reach behind an alarm's first value.

    Alarms need several values in a row, during which the run may save what has already gone wrong.
    """
    if config.on_collapse != "roll_back":
        return config.keep
    reach = max(
        max(alarm.patience, alarm.longest) * (config.validate_every if alarm.metric.startswith("validation/") else 1)
        for alarm in ALARMS
        if alarm.collapse
    )
    return max(config.keep, math.ceil(reach / config.checkpoint_every) + 1)


class RollBacks:
    """The roll-backs of a run so far.

    Attributes:
        records: of each: alarm, iteration (at which it was raised), began (the first bad one), step (of the checkpoint
            gone back to), totals (spent until then) and rows (of metrics.jsonl given up).
    """

    def __init__(self, folder: Path):
        """Reads those of a run; `folder` is made with the first one.

        Raises:
            UserError: a record cannot be read.
        """
        self.folder = folder
        self.records: list[dict[str, Any]] = []
        while (file := self._file(len(self.records) + 1)).exists():
            try:
                self.records.append(json.loads(file.read_text(encoding="utf-8")))
            except ValueError as error:
                raise UserError(
                    f"{file}: cannot be read ({error}); put back the whole file, or use a new run"
                ) from error

    def _file(self, number: int) -> Path:
        return self.folder / f"{number}.json"

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self.records)

    def add(self, record: Mapping[str, Any]) -> None:
        """Puts one on record."""
        self.folder.mkdir(exist_ok=True)
        with atomic_write(self._file(self.count + 1)) as file:
            json.dump(record, file)
        self.records.append(dict(record))

    def newest_step(self, checkpoints: Checkpoints) -> int | None:
        """Step of the newest checkpoint that no roll-back gave up, or None; those given up are deleted."""
        while (step := checkpoints.latest_step()) is not None:
            known = checkpoints.meta(step).get("roll_backs", 0)
            if all(step <= record["step"] for record in self.records[known:]):
                break
            checkpoints.delete(step)
        return step

    def summary(self) -> list[dict[str, Any]]:
        """What the summary says of them."""
        return [{name: record[name] for name in ("alarm", "iteration", "began", "step")} for record in self.records]
