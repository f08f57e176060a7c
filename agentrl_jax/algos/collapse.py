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

Rule = Literal["significant_fall", "significant_rise", "falls", "rises", "drifts", "above", "spikes"]

BASELINE = 10
"""Number of values at the start of a run; later values are compared with their mean."""
SOLVED = 0.9
"""Training success rate from which a run whose returns do not vary is solved, not collapsed."""
SPIKE_WINDOW = 20
SIGNIFICANT = ("significant_fall", "significant_rise")


@dataclasses.dataclass(frozen=True)
class Alarm:
    """One alarm on one metric.

    Rules: significant_fall: the mean of the last `patience` to `longest` values has fallen significantly, see
    `change.falls`: below `limit` and below half the mean of all values before, or, if `relative`, below `limit` times
    the mean of the first values. significant_rise: the same for 1 - metric, with the bound 1 - `limit`. falls, rises:
    below or above `limit` times the mean of the first values. drifts: below 1 / limit or above limit times that mean.
    above: above `limit` itself. spikes: above `limit` times the median of the twenty values before.

    Attributes:
        name: as in `alarm/NAME` of metrics.jsonl.
        patience: number of consecutive values beyond the limit, or the length of the shortest window.
        collapse: True: the alarm alone means that learning has ended. False: it is a warning.
        about: explanation for people: a clause that can follow "The run has collapsed:".
        source: where the rule and its numbers come from.
        start: number of first values that form the reference; rules that need them raise nothing earlier.
        least_start: if the mean of the first values is at most this, it is noise and falls raises nothing.
        longest: length of the longest window of significant_fall and significant_rise.
        episodes: if the metric is a success rate, the metric with the number of episodes behind it.
        independent: these episodes are independent of each other, as on fixed levels; in groups they are not.
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


_OWN = "this project"
_NO_SIGNAL = "this project; RAGEN-2 (arXiv 2604.06268): without varying returns only regularizers have a gradient"
_V2 = "RAGEN v2, early stopping; significance test by this project"
_TRAP = "sign of the Echo Trap (arXiv 2504.20073); limit by this project"
_TEMPLATE = "template collapse of RAGEN-2 (arXiv 2604.06268); limit by this project"

_ABOUT = {
    "spread_lost": "the episodes of a group get almost equal returns, so comparing them teaches nothing",
    "no_signal": "in nearly every group all episodes get the same return, which was not so before",
    "success_lost": "the validation levels are no longer solved",
    "success_fallen": "episodes succeed less than half as often as at the start",
    "entropy_lost": "the policy hardly varies",
    "entropy_risen": "the policy turns random",
    "gradient_spike": "the norm of a gradient is many times that of the gradients before",
    "far_from_start": "the policy is far from the policy at the start (in runs with a reference policy)",
    "length_drift": "responses are less than half or more than twice as long as at the start",
    "repetition": "the episodes of a group have exactly the same responses",
    "format_lost": "responses have the required format less than half as often as at the start",
    "template_thoughts": "thoughts depend less on the prompt than at the start, as if one template fitted all",
    "template_responses": "responses depend less on the prompt than at the start, as if one template fitted all",
}


def _collapse(name: str, metric: str, unit: str, rule: Rule, limit: float, source: str, **options: Any) -> Alarm:
    options = {"patience": 10, "longest": 40, **options}
    return Alarm(name, metric, unit, rule, limit, collapse=True, about=_ABOUT[name], source=source, **options)


def _warning(name: str, metric: str, unit: str, rule: Rule, limit: float, source: str, **options: Any) -> Alarm:
    options = {"patience": 10, **options}
    return Alarm(name, metric, unit, rule, limit, collapse=False, about=_ABOUT[name], source=source, **options)


_FIXED_LEVELS = {"patience": 5, "longest": 5, "episodes": "validation/episodes", "independent": True}
_TRAINING = {"relative": True, "episodes": "rollout/episodes"}
_SPARSE = {"patience": 3, "start": 3, "least_start": 0.2}  # mutual information is measured in few iterations

ALARMS: tuple[Alarm, ...] = (
    _collapse("spread_lost", "rollout/in_group_std", "return", "significant_fall", 0.1, _V2, relative=True),
    _collapse("no_signal", "rollout/zero_std_share", "share of groups", "significant_rise", 0.95, _NO_SIGNAL),
    _collapse(
        "success_lost", "validation/success", "share of episodes", "significant_fall", 0.01, _V2, **_FIXED_LEVELS
    ),
    _collapse("success_fallen", "train/success", "share of episodes", "significant_fall", 0.5, _OWN, **_TRAINING),
    _warning("entropy_lost", "actor/entropy", "nats per token", "falls", 0.1, _TRAP),
    _warning("entropy_risen", "actor/entropy", "nats per token", "rises", 3.0, _TRAP),
    _warning("gradient_spike", "actor/grad_norm_max", "norm", "spikes", 10.0, _TRAP, patience=1),
    _warning("far_from_start", "actor/kl", "nats per token", "above", 1.0, _OWN, patience=5),
    _warning("length_drift", "train/response_tokens", "tokens per turn", "drifts", 2.0, _TRAP),
    _warning("repetition", "rollout/repeated_share", "share of episodes", "above", 0.95, _TRAP),
    _warning("format_lost", "train/valid_format", "share of turns", "falls", 0.5, _OWN),
    _warning("template_thoughts", "collapse/first_turn_mi", "nats", "falls", 0.25, _TEMPLATE, **_SPARSE),
    _warning("template_responses", "collapse/first_turn_response_mi", "nats", "falls", 0.25, _TEMPLATE, **_SPARSE),
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """What an alarm found in a run.

    `began` is the iteration of the first value of the streak or window that first raised the alarm, `seen` the value or
    the mean of the window, and `reference` what it was compared with; all are None if the alarm was never raised.
    `iterations` and `values` are those of the metric, `raised` the iterations at which the alarm was raised; ascending.
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

    @property
    def first_bad(self) -> int:
        """Number of iterations after which the policy gave the first value that raised the alarm.

        A validation measures the policy after the update of its iteration, a rollout the one before it.
        """
        assert self.began is not None
        return self.began if self.alarm.metric.startswith("validation/") else self.began - 1


def examine(alarm: Alarm, rows: Sequence[Mapping[str, Any]]) -> Finding:
    """Applies an alarm to the rows of a run."""
    iterations, values = _series(alarm, rows)
    if alarm.rule in SIGNIFICANT:
        return _significant_fall(alarm, rows, iterations, values)
    streak, raised, first = 0, [], None
    start = _start(alarm, values)
    for index, value in enumerate(values):
        reference = _reference(alarm, values, index, start)
        streak = streak + 1 if reference is not None and is_beyond(alarm, value, reference) else 0
        if streak >= alarm.patience:
            raised.append(iterations[index])
            first = first or (iterations[index - alarm.patience + 1], value, reference)
    return Finding(alarm, iterations, values, tuple(raised), *(first or (None, None, None)))


def _series(alarm: Alarm, rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Iterations and values of an alarm's metric, without rows that have none."""
    known = [
        (row["iteration"], row[alarm.metric]) for row in rows if "iteration" in row and is_value(row.get(alarm.metric))
    ]
    return tuple(i for i, _ in known), tuple(float(v) for _, v in known)


def is_value(found: Any) -> bool:
    """Whether an entry of a row is a number that alarms look at."""
    return isinstance(found, int | float) and math.isfinite(found)


def _start(alarm: Alarm, values: Sequence[float]) -> float | None:
    return statistics.fmean(values[: alarm.start]) if len(values) >= alarm.start else None


def _significant_fall(
    alarm: Alarm, rows: Sequence[Mapping[str, Any]], iterations: tuple[int, ...], values: tuple[float, ...]
) -> Finding:
    """The finding of the rules significant_fall and significant_rise for the values at these iterations."""
    rise = alarm.rule == "significant_rise"
    series = np.asarray([fallen(alarm, value) for value in values])
    rule = fall_rule(alarm, series[: alarm.start])
    counts = _counts(alarm, rows, iterations)
    found = change.falls(rule, series, counts)
    raised: list[int] = []
    first: tuple[int, float, float] | None = None
    below = 0.0  # the alarm lasts while values stay below this; a moving reference would soon include the fall itself
    for index in range(len(series)):
        newest = float(series[max(0, index - alarm.patience + 1) : index + 1].mean())
        if found.begins[index] >= 0:
            reference = float(found.references[index])
            below = max(below, min(rule.bound, rule.share * reference))
            first = first or (iterations[found.begins[index]], float(found.means[index]), reference)
        elif newest >= below:
            below = 0.0
            continue
        raised.append(iterations[index])
    if first is None:
        return Finding(alarm, iterations, values, (), None, None, None)
    began, *means = first
    seen, reference = (1.0 - mean for mean in means) if rise else means
    return Finding(alarm, iterations, values, tuple(raised), began, seen, reference)


def fallen(alarm: Alarm, value: float) -> float:
    """The value whose fall a rule significant_fall or significant_rise looks for."""
    return 1.0 - value if alarm.rule == "significant_rise" else value


def fall_rule(alarm: Alarm, first: Sequence[float] | np.ndarray) -> change.FallRule:
    """The fall that such a rule looks for, given the `alarm.start` first values of `fallen`."""
    bound = 1.0 - alarm.limit if alarm.rule == "significant_rise" else alarm.limit
    share = alarm.limit if alarm.relative else 0.5
    if alarm.relative:
        bound = share * float(np.mean(first)) if len(first) else 0.0
    return change.FallRule(
        bound, share, alarm.start if alarm.relative else None, alarm.patience, alarm.longest, alarm.independent
    )


def episodes(alarm: Alarm, row: Mapping[str, Any]) -> float | None:
    """Number of episodes behind the value of a row; None if it is not known."""
    if row.get(alarm.episodes) is None:
        return None
    of_training = alarm.episodes == "rollout/episodes"  # in validations failed episodes are played again
    return row[alarm.episodes] - (row.get("rollout/failed", 0) if of_training else 0)


def _counts(alarm: Alarm, rows: Sequence[Mapping[str, Any]], iterations: Sequence[int]) -> np.ndarray | None:
    """Number of episodes behind each value; None if it is not known for every value."""
    known = {row["iteration"]: episodes(alarm, row) for row in rows if "iteration" in row}
    counts = [known.get(iteration) for iteration in iterations]
    return None if None in counts else np.asarray(counts, np.float64)


def _reference(alarm: Alarm, values: Sequence[float], index: int, start: float | None) -> float | None:
    """What the value at `index` is compared with; None if there is no reference yet."""
    if alarm.rule == "above":
        return alarm.limit
    if index < alarm.start or (alarm.rule == "falls" and start is not None and start <= alarm.least_start):
        return None
    return statistics.median(values[max(0, index - SPIKE_WINDOW) : index]) if alarm.rule == "spikes" else start


def is_beyond(alarm: Alarm, value: float, reference: float) -> bool:
    """Whether a value is beyond the limit of an alarm."""
    if alarm.rule == "above":
        return value > reference
    if alarm.rule == "falls":
        return value < alarm.limit * reference
    if alarm.rule in ("rises", "spikes"):
        return reference > 0 and value > alarm.limit * reference
    return value > alarm.limit * reference or value < reference / alarm.limit


def recent_success(rows: Sequence[Mapping[str, Any]], iteration: int) -> float:
    """Mean training success rate over the ten iterations up to this one; 0 if there is none."""
    known = [
        row["train/success"]
        for row in rows
        if row.get("iteration", 0) <= iteration and row.get("train/success") is not None
    ]
    return statistics.fmean(known[-BASELINE:]) if known else 0.0


def is_solved(rows: Sequence[Mapping[str, Any]], finding: Finding) -> bool:
    """Whether an alarm means that the task is solved rather than that the run collapsed: 90 % of the episodes succeed.

    Counted are the ten iterations up to the one that first raised the alarm.
    """
    return finding.alarm.metric != "validation/success" and recent_success(rows, finding.raised[0]) >= SOLVED
