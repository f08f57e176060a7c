"""Signs that a run collapses, read from its metrics: each with a definition, a unit and a source.

A run's rows are those of metrics.jsonl; rows without a metric (a validation that was not due) are passed over.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Rule = Literal["falls", "rises", "drifts", "above", "below", "spikes"]

BASELINE = 10
"""Values at the start whose mean is what later ones are compared with."""
SOLVED = 0.9
"""Success of training from which a run without spread is done, not collapsed."""
_SPIKE_WINDOW = 20


@dataclasses.dataclass(frozen=True)
class Alarm:
    """One sign.

    Attributes:
        name: as in `alarm/NAME` of metrics.jsonl.
        metric: what it watches.
        unit: of the metric.
        rule: falls, rises: below or above `limit` times the mean of the first values. drifts: below 1 / limit or above
            limit times that. above, below: beyond `limit` itself, below only once a value was not. spikes: above
            `limit` times the median of the twenty values before.
        limit: see there.
        patience: values in a row.
        collapse: what it says by itself: learning has come to its end. The others are warnings.
        about: in plain words.
        source: where rule and numbers come from.
        start: number of the first values, before which rules that need them raise nothing.
        least_start: a mean of theirs up to this is noise, from which nothing falls.
    """

    name: str
    metric: str
    unit: str
    rule: Rule
    limit: float
    patience: int
    collapse: bool
    about: str
    source: str
    start: int = BASELINE
    least_start: float = 0.0


_V2 = "RAGEN v2, early stopping"
_TRAP = "sign of the Echo Trap in arXiv 2504.20073; limit ours"
_TEMPLATE = "template collapse of RAGEN-2 (arXiv 2604.06268); limit ours"

ALARMS: tuple[Alarm, ...] = (
    Alarm(
        "spread_lost",
        "rollout/in_group_std",
        "return",
        "falls",
        0.1,
        10,
        True,
        "members of a group earn the same, so that there is nothing left to compare",
        _V2,
    ),
    Alarm(
        "no_signal",
        "rollout/zero_std_share",
        "share of groups",
        "above",
        0.95,
        10,
        True,
        "nearly every group is solved by all members or by none",
        "ours; RAGEN-2 (arXiv 2604.06268): without spread regularisers are all that is left of the gradient",
    ),
    Alarm(
        "success_lost",
        "validation/success",
        "share of episodes",
        "below",
        0.01,
        5,
        True,
        "held-out levels are not solved any more",
        _V2,
    ),
    Alarm(
        "success_fallen",
        "train/success",
        "share of episodes",
        "falls",
        0.5,
        10,
        True,
        "episodes succeed less than half as often as at the start",
        "ours",
    ),
    Alarm("entropy_lost", "actor/entropy", "nats a token", "falls", 0.1, 10, False, "the policy hardly varies", _TRAP),
    Alarm("entropy_risen", "actor/entropy", "nats a token", "rises", 3.0, 10, False, "the policy turns random", _TRAP),
    Alarm(
        "gradient_spike",
        "actor/grad_norm_max",
        "norm",
        "spikes",
        10.0,
        1,
        False,
        "a gradient is many times as long as those before",
        _TRAP,
    ),
    Alarm(
        "far_from_start",
        "actor/kl",
        "nats a token",
        "above",
        1.0,
        5,
        False,
        "the policy is far from the one it started as (runs that have a reference)",
        "ours",
    ),
    Alarm(
        "length_drift",
        "train/reply_tokens",
        "tokens a turn",
        "drifts",
        2.0,
        10,
        False,
        "replies are half or twice as long as at the start",
        _TRAP,
    ),
    Alarm(
        "repetition",
        "rollout/repeated_share",
        "share of episodes",
        "above",
        0.95,
        10,
        False,
        "members of a group say the same, word for word",
        _TRAP,
    ),
    Alarm(
        "format_lost",
        "train/valid_format",
        "share of turns",
        "falls",
        0.5,
        10,
        False,
        "replies cannot be read any more",
        "ours",
    ),
    Alarm(
        "template_thoughts",
        "collapse/first_turn_mi",
        "nats",
        "falls",
        0.25,
        3,
        False,
        "thoughts depend less and less on the prompt: one template fits every one",
        _TEMPLATE,
        start=3,
        least_start=0.2,
    ),
    Alarm(
        "template_replies",
        "collapse/first_turn_reply_mi",
        "nats",
        "falls",
        0.25,
        3,
        False,
        "replies depend less and less on the prompt: one template fits every one",
        _TEMPLATE,
        start=3,
        least_start=0.2,
    ),
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """What an alarm found in a run.

    Attributes:
        alarm: which.
        iterations: of the values, in order.
        values: of the metric.
        bad: whether each value is beyond the limit.
        raised: iterations at which the alarm was raised: `patience` values in a row were bad, or more.
        reference: what the last value is compared with; None before there is anything.
    """

    alarm: Alarm
    iterations: tuple[int, ...]
    values: tuple[float, ...]
    bad: tuple[bool, ...]
    raised: tuple[int, ...]
    reference: float | None

    @property
    def began(self) -> int | None:
        """Iteration of the first bad value of the streak that first raised the alarm."""
        if not self.raised:
            return None
        return self.iterations[self.iterations.index(self.raised[0]) - self.alarm.patience + 1]

    @property
    def lasts(self) -> bool:
        """Whether it is raised at the newest value."""
        return bool(self.raised) and self.raised[-1] == self.iterations[-1]


def examine(alarm: Alarm, rows: Sequence[Mapping[str, Any]]) -> Finding:
    """Applies an alarm to the rows of a run."""
    known = [
        (row["iteration"], float(row[alarm.metric]))
        for row in rows
        if "iteration" in row and isinstance(row.get(alarm.metric), int | float) and math.isfinite(row[alarm.metric])
    ]
    iterations, values = tuple(i for i, _ in known), tuple(v for _, v in known)
    bad, streak, raised = [], 0, []
    start = statistics.fmean(values[: alarm.start]) if len(values) >= alarm.start else None
    reference: float | None = None
    for index, value in enumerate(values):
        reference = _reference(alarm, values, index, start)
        is_bad = reference is not None and _beyond(alarm, value, reference)
        streak = streak + 1 if is_bad else 0
        bad.append(is_bad)
        if streak >= alarm.patience:
            raised.append(iterations[index])
    return Finding(alarm, iterations, values, tuple(bad), tuple(raised), reference)


def _reference(alarm: Alarm, values: Sequence[float], index: int, start: float | None) -> float | None:
    """What the value at `index` is compared with; None where there is nothing yet."""
    if alarm.rule == "above":
        return alarm.limit
    if alarm.rule == "below":
        return alarm.limit if any(value >= alarm.limit for value in values[:index]) else None
    if index < alarm.start or (alarm.rule == "falls" and start is not None and start <= alarm.least_start):
        return None
    return statistics.median(values[max(0, index - _SPIKE_WINDOW) : index]) if alarm.rule == "spikes" else start


def _beyond(alarm: Alarm, value: float, reference: float) -> bool:
    if alarm.rule == "above":
        return value > reference
    if alarm.rule == "below":
        return value < reference
    if alarm.rule == "falls":
        return value < alarm.limit * reference
    if alarm.rule in ("rises", "spikes"):
        return reference > 0 and value > alarm.limit * reference
    return value > alarm.limit * reference or value < reference / alarm.limit


def raised(rows: Sequence[Mapping[str, Any]]) -> tuple[Alarm, ...]:
    """The alarms that are raised at the newest value of their metric, which has to be of the newest row."""
    found = (examine(alarm, rows) for alarm in ALARMS)
    newest = rows[-1]["iteration"] if rows else None
    return tuple(f.alarm for f in found if f.lasts and f.raised[-1] == newest)


def is_solved(rows: Sequence[Mapping[str, Any]], finding: Finding) -> bool:
    """Whether a sign of collapse says instead that there is nothing left to learn: 90 % of the episodes succeed.

    Success is the mean of the ten iterations up to the one that first raised the alarm.
    """
    until = [
        row["train/success"]
        for row in rows
        if row.get("iteration", 0) <= finding.raised[0] and row.get("train/success") is not None
    ]
    known = bool(until) and finding.alarm.metric != "validation/success"
    return known and statistics.fmean(until[-BASELINE:]) >= SOLVED
