"""Watches the metrics of a run for collapse, iteration by iteration."""

from collections.abc import Callable, Sequence
from typing import Any

from agentrl_jax.algos import collapse
from agentrl_jax.algos.collapse import Finding


class CollapseMonitor:
    """Checks every row of a run's metrics for alarms, and decides whether the run should stop.

    `stopped_by` is the name of the alarm that stops the run or rolls it back; empty while the run continues.
    """

    def __init__(self, stop: bool, rows: Sequence[dict[str, Any]], note: Callable[[str], None]):
        """Starts from the rows of metrics.jsonl so far; `note` shows a line to the user."""
        self.stop, self.note = stop, note
        self.rows = [row for row in rows if row["stage"] == "rl"]
        self.stopped_by = ""
        self._stop_at_alarm(self.rows[-1] if self.rows else {})

    def see(self, row: dict[str, Any]) -> None:
        """Adds the raised alarms to the row of an iteration, and reports new ones to the user."""
        self.rows.append(row)
        for alarm in collapse.raised(self.rows):
            row[f"alarm/{alarm.name}"] = 1.0
            # An alarm on a validation metric is compared with the previous validation.
            before: dict[str, Any] = next((r for r in reversed(self.rows[:-1]) if alarm.metric in r), {})
            if f"alarm/{alarm.name}" not in before:
                self.note(f"iteration {row['iteration']}: {alarm.about} ({alarm.name})")
        self._stop_at_alarm(row)

    def finding(self) -> Finding:
        """Returns the finding of the alarm `stopped_by`."""
        return next(collapse.examine(alarm, self.rows) for alarm in collapse.ALARMS if alarm.name == self.stopped_by)

    def _stop_at_alarm(self, row: dict[str, Any]) -> None:
        if self.stop:
            names = (alarm.name for alarm in collapse.ALARMS if alarm.collapse and f"alarm/{alarm.name}" in row)
            self.stopped_by = next(names, "")
