"""The alarms of a run, iteration by iteration."""

from collections.abc import Callable, Sequence
from typing import Any

from agentrl_jax.algos import collapse
from agentrl_jax.algos.collapse import Finding


class CollapseMonitor:
    """Looks at every row of a run's metrics, and says when it should end.

    Attributes:
        stopped_by: name of the alarm that ends the run, or takes it back; empty while it goes on.
    """

    def __init__(self, stop: bool, rows: Sequence[dict[str, Any]], note: Callable[[str], None]):
        """Goes on behind the rows of iterations so far.

        Args:
            stop: an alarm of collapse ends the run.
            rows: of metrics.jsonl.
            note: shows a line to the user.
        """
        self.stop, self.note = stop, note
        self.rows = [row for row in rows if row["stage"] == "rl"]
        self.stopped_by = ""
        self._heed(self.rows[-1] if self.rows else {})

    def see(self, row: dict[str, Any]) -> None:
        """Adds the alarms that are raised to the row of an iteration, and tells of new ones."""
        self.rows.append(row)
        for alarm in collapse.raised(self.rows):
            row[f"alarm/{alarm.name}"] = 1.0
            # A validation's alarm is compared with the validation before.
            before: dict[str, Any] = next((r for r in reversed(self.rows[:-1]) if alarm.metric in r), {})
            if f"alarm/{alarm.name}" not in before:
                self.note(f"iteration {row['iteration']}: {alarm.about} ({alarm.name})")
        self._heed(row)

    @property
    def finding(self) -> Finding:
        """What the alarm `stopped_by` found."""
        return next(collapse.examine(alarm, self.rows) for alarm in collapse.ALARMS if alarm.name == self.stopped_by)

    @property
    def solved(self) -> bool:
        """Whether that alarm says that there is nothing left to learn, see `collapse.is_solved`."""
        return collapse.is_solved(self.rows, self.finding)

    def _heed(self, row: dict[str, Any]) -> None:
        if self.stop:
            names = [alarm.name for alarm in collapse.ALARMS if alarm.collapse and f"alarm/{alarm.name}" in row]
            self.stopped_by = names[0] if names else ""
