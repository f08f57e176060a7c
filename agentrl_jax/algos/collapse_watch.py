"""Finds the alarms of `collapse` while a run goes on: an iteration costs the same however many there were before."""

import collections
import statistics
from collections.abc import Mapping
from typing import Any

from agentrl_jax.algos import change, collapse
from agentrl_jax.algos.collapse import SIGNIFICANT, SPIKE_WINDOW, Alarm


class CollapseWatch:
    """The alarms at each row of metrics.jsonl, as `collapse.examine` finds them in all rows so far."""

    def __init__(self) -> None:
        """Starts before the first row."""
        self._series = [(_Falls if alarm.rule in SIGNIFICANT else _Streak)(alarm) for alarm in collapse.ALARMS]

    def add(self, row: Mapping[str, Any]) -> tuple[Alarm, ...]:
        """The alarms raised at a row, if it has their metric."""
        known = [
            series for series in self._series if "iteration" in row and collapse.is_value(row.get(series.alarm.metric))
        ]
        return tuple(series.alarm for series in known if series.add(float(row[series.alarm.metric]), row))


class _Streak:
    """Counts the newest values in a row that are beyond a limit."""

    def __init__(self, alarm: Alarm):
        self.alarm, self._streak = alarm, 0
        self._first: list[float] = []
        self._before: collections.deque[float] = collections.deque(maxlen=SPIKE_WINDOW)

    def add(self, value: float, row: Mapping[str, Any]) -> bool:
        reference = self._reference()
        beyond = reference is not None and collapse.is_beyond(self.alarm, value, reference)
        self._streak = self._streak + 1 if beyond else 0
        if len(self._first) < self.alarm.start:
            self._first.append(value)
        self._before.append(value)
        return self._streak >= self.alarm.patience

    def _reference(self) -> float | None:
        """As `collapse` has it, from the values so far."""
        if self.alarm.rule == "above":
            return self.alarm.limit
        if len(self._first) < self.alarm.start:
            return None
        start = statistics.fmean(self._first)
        if self.alarm.rule == "falls" and start <= self.alarm.least_start:
            return None
        return statistics.median(self._before) if self.alarm.rule == "spikes" else start


class _Falls:
    """Tests the newest windows, and says how long a fall lasts."""

    def __init__(self, alarm: Alarm):
        self.alarm, self._below = alarm, 0.0
        self._first: list[tuple[float, float | None]] = []
        self._newest: collections.deque[float] = collections.deque(maxlen=alarm.patience)
        self._fall = None if alarm.relative else change.NewestFall(collapse.fall_rule(alarm, ()))

    def add(self, value: float, row: Mapping[str, Any]) -> bool:
        value, count = collapse.fallen(self.alarm, value), collapse.episodes(self.alarm, row)
        self._newest.append(value)
        if self._fall is None:  # what is low depends on the first values
            self._first.append((value, count))
            if len(self._first) == self.alarm.start:
                self._fall = change.NewestFall(collapse.fall_rule(self.alarm, [first for first, _ in self._first]))
                for first in self._first:
                    self._fall.add(*first)
            return False
        found = self._fall.add(value, count)
        if found.begins[0] >= 0:
            rule = self._fall.rule
            self._below = max(self._below, min(rule.bound, rule.share * float(found.references[0])))
            return True
        if sum(self._newest) / len(self._newest) >= self._below:
            self._below = 0.0
            return False
        return True
