"""Alarms for signs that a run collapses, computed from its metrics: each with a definition, a unit and a source.

The rows of a run are those of metrics.jsonl; rows without the metric (no validation in that iteration) are skipped.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from agentrl_jax.algos import change

Rule = Literal["lost", "filled", "falls", "rises", "drifts", "above", "spikes"]

BASELINE = 10
"""Number of values at the start of a run; later values are compared with their mean."""
SOLVED = 0.9
"""Training success rate from which a run whose returns do not vary is solved, not collapsed."""
_SPIKE_WINDOW = 20


@dataclasses.dataclass(frozen=True)
class Alarm:
    """One alarm.

    Attributes:
        name: as in `alarm/NAME` of metrics.jsonl.
        metric: the metric that is watched.
        unit: unit of the metric.
        rule: lost: the mean of the last `patience` to `longest` values has fallen significantly, see `change.falls`:
            below `limit` and below half the mean of all values before, or, if `relative`, below `limit` times the mean
            of the first values. filled: the same for 1 - metric, with the bound 1 - `limit`. falls, rises: below or
            above `limit` times the mean of the first values. drifts: below 1 / limit or above limit times that mean.
            above: above `limit` itself. spikes: above `limit` times the median of the twenty values before.
        limit: see `rule`.
        patience: number of consecutive values beyond the limit; for lost and filled, the length of the shortest window.
        collapse: True: the alarm alone means that learning has ended. False: it is a warning.
        about: explanation for people.
        source: where the rule and its numbers come from.
        start: number of first values that form the reference; rules that need them raise nothing earlier.
        least_start: if the mean of the first values is at most this, it is noise and falls raises nothing.
        longest: length of the longest window, for lost and filled.
        relative: see `rule`.
        independent: the episodes are independent of each other, as on fixed levels; in groups they are not.
        episodes: if the metric is a success rate, the metric with the number of episodes behind it.
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
    longest: int = 0
    relative: bool = False
    episodes: str = ""
    independent: bool = False


_V2 = "RAGEN v2, early stopping"
_TRAP = "sign of the Echo Trap in arXiv 2504.20073; limit ours"
_TEMPLATE = "template collapse of RAGEN-2 (arXiv 2604.06268); limit ours"

ALARMS: tuple[Alarm, ...] = (
    Alarm(
        "spread_lost",
        "rollout/in_group_std",
        "return",
        "lost",
        0.1,
        10,
        True,
        "members of a group earn the same, so that there is nothing left to compare",
        _V2 + "; test ours",
        longest=40,
        relative=True,
    ),
    Alarm(
        "no_signal",
        "rollout/zero_std_share",
        "share of groups",
        "filled",
        0.95,
        10,
        True,
        "nearly every group is solved by all members or by none, which was not so before",
        "ours; RAGEN-2 (arXiv 2604.06268): without spread regularizers are all that is left of the gradient",
        longest=40,
    ),
    Alarm(
        "success_lost",
        "validation/success",
        "share of episodes",
        "lost",
        0.01,
        5,
        True,
        "held-out levels are not solved any more",
        _V2 + "; test ours",
        longest=5,
        episodes="validation/episodes",
        independent=True,
    ),
    Alarm(
        "success_fallen",
        "train/success",
        "share of episodes",
        "lost",
        0.5,
        10,
        True,
        "episodes succeed less than half as often as at the start",
        "ours",
        longest=40,
        relative=True,
        episodes="rollout/episodes",
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
        "train/response_tokens",
        "tokens a turn",
        "drifts",
        2.0,
        10,
        False,
        "responses are half or twice as long as at the start",
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
        "responses cannot be read any more",
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
        "template_responses",
        "collapse/first_turn_response_mi",
        "nats",
        "falls",
        0.25,
        3,
        False,
        "responses depend less and less on the prompt: one template fits every one",
        _TEMPLATE,
        start=3,
        least_start=0.2,
    ),
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """What an alarm found in a run.

    Attributes:
        alarm: the alarm.
        iterations: iterations of the values, ascending.
        values: values of the metric.
        raised: iterations at which the alarm was raised.
        began: iteration of the first value of the streak or window that first raised it; None if never raised.
        seen: the value, or the mean of the window, that first raised it; None if never raised.
        reference: what `seen` was compared with; None if never raised.
    """

    alarm: Alarm
    iterations: tuple[int, ...]
    values: tuple[float, ...]
    raised: tuple[int, ...]
    began: int | None
    seen: float | None
    reference: float | None

    @property
    def lasts(self) -> bool:
        """Whether the alarm is raised at the newest value."""
        return bool(self.raised) and self.raised[-1] == self.iterations[-1]


def examine(alarm: Alarm, rows: Sequence[Mapping[str, Any]]) -> Finding:
    """Applies an alarm to the rows of a run."""
    known = [
        (row["iteration"], float(row[alarm.metric]))
        for row in rows
        if "iteration" in row and isinstance(row.get(alarm.metric), int | float) and math.isfinite(row[alarm.metric])
    ]
    iterations, values = tuple(i for i, _ in known), tuple(v for _, v in known)
    if alarm.rule in ("lost", "filled"):
        return _lost(alarm, rows, iterations, values)
    streak, raised, first = 0, [], None
    start = statistics.fmean(values[: alarm.start]) if len(values) >= alarm.start else None
    for index, value in enumerate(values):
        reference = _reference(alarm, values, index, start)
        streak = streak + 1 if reference is not None and _beyond(alarm, value, reference) else 0
        if streak >= alarm.patience:
            raised.append(iterations[index])
            first = first or (iterations[index - alarm.patience + 1], value, reference)
    return Finding(alarm, iterations, values, tuple(raised), *(first or (None, None, None)))


def _lost(
    alarm: Alarm, rows: Sequence[Mapping[str, Any]], iterations: tuple[int, ...], values: tuple[float, ...]
) -> Finding:
    """The finding of the rules lost and filled for the values at these iterations."""
    series = np.asarray(values, np.float64)
    series = 1.0 - series if alarm.rule == "filled" else series
    bound = 1.0 - alarm.limit if alarm.rule == "filled" else alarm.limit
    share = alarm.limit if alarm.relative else 0.5
    if alarm.relative:
        bound = share * float(series[: alarm.start].mean()) if len(series) else 0.0
    found = change.falls(
        series,
        bound=bound,
        share=share,
        start=alarm.start if alarm.relative else None,
        shortest=alarm.patience,
        longest=alarm.longest,
        counts=(counts := _counts(alarm, rows, iterations)),
        independent=counts is not None and alarm.independent,
    )
    raised: list[int] = []
    first: tuple[int, float, float] | None = None
    below = 0.0  # the alarm lasts while values stay below this; a moving reference would soon include the fall itself
    for index in range(len(series)):
        newest = float(series[max(0, index - alarm.patience + 1) : index + 1].mean())
        if found.begins[index] >= 0:
            reference = float(found.references[index])
            below = max(below, min(bound, share * reference))
            first = first or (iterations[found.begins[index]], float(found.means[index]), reference)
        elif newest >= below:
            below = 0.0
            continue
        raised.append(iterations[index])
    if first is None:
        return Finding(alarm, iterations, values, (), None, None, None)
    began, *means = first
    seen, reference = (1.0 - mean for mean in means) if alarm.rule == "filled" else means
    return Finding(alarm, iterations, values, tuple(raised), began, seen, reference)


def _counts(alarm: Alarm, rows: Sequence[Mapping[str, Any]], iterations: Sequence[int]) -> np.ndarray | None:
    """Number of episodes behind each value, f64[n]; None if it is not known for every value."""
    of = {
        row["iteration"]: row[alarm.episodes] - row.get("rollout/failed", 0)
        for row in rows
        if "iteration" in row and row.get(alarm.episodes) is not None
    }
    if not all(iteration in of for iteration in iterations):
        return None
    return np.asarray([of[iteration] for iteration in iterations], np.float64)


def _reference(alarm: Alarm, values: Sequence[float], index: int, start: float | None) -> float | None:
    """What the value at `index` is compared with; None if there is no reference yet."""
    if alarm.rule == "above":
        return alarm.limit
    if index < alarm.start or (alarm.rule == "falls" and start is not None and start <= alarm.least_start):
        return None
    return statistics.median(values[max(0, index - _SPIKE_WINDOW) : index]) if alarm.rule == "spikes" else start


def _beyond(alarm: Alarm, value: float, reference: float) -> bool:
    if alarm.rule == "above":
        return value > reference
    if alarm.rule == "falls":
        return value < alarm.limit * reference
    if alarm.rule in ("rises", "spikes"):
        return reference > 0 and value > alarm.limit * reference
    return value > alarm.limit * reference or value < reference / alarm.limit


def raised(rows: Sequence[Mapping[str, Any]]) -> tuple[Alarm, ...]:
    """The alarms raised at the newest value of their metric, if that value belongs to the newest row."""
    found = (examine(alarm, rows) for alarm in ALARMS)
    newest = rows[-1]["iteration"] if rows else None
    return tuple(f.alarm for f in found if f.lasts and f.raised[-1] == newest)


def is_solved(rows: Sequence[Mapping[str, Any]], finding: Finding) -> bool:
    """Whether an alarm means that the task is solved rather than that the run collapsed: 90 % of the episodes succeed.

    The success rate is the mean over the ten iterations up to the one that first raised the alarm.
    """
    until = [
        row["train/success"]
        for row in rows
        if row.get("iteration", 0) <= finding.raised[0] and row.get("train/success") is not None
    ]
    known = bool(until) and finding.alarm.metric != "validation/success"
    return known and statistics.fmean(until[-BASELINE:]) >= SOLVED
