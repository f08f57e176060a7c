"""Results of a comparison of learning rules: a table, a figure and a page.

Records are those of `variants.Variants.run`. Dimensions: `S` seeds, `n` held-out levels, `k` validations.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

from agentrl_jax.algos.collapse import ALARMS
from agentrl_jax.evaluate.statistics import crossed_interval
from agentrl_jax.io import atomic_write

Record = Mapping[str, Any]
Interval = dict[str, float | int]
_GRAY, _BLUE = "#94a3b8", "#2563eb"


@dataclasses.dataclass(frozen=True)
class Finding:
    """Results of one variant.

    Success is that over seeds and held-out levels: sampled before training, and sampled and greedy after it. `entropy`
    (per token, in nats) and `no_spread` (share of groups whose returns are all equal) are means of the first and of the
    last five iterations. `alarms` counts the seeds that raised each alarm, `skipped` the gradient steps of all seeds.
    """

    name: str
    start: Interval
    sampled: Interval
    greedy: Interval
    gain: Interval
    """Sampled success after training minus that before, paired by seed on the same levels."""
    steps: float
    """Mean environment steps per seed."""
    at_equal_steps: Interval
    """Sampled validation success at the total environment steps of the variant that used the fewest, over seeds."""
    entropy: tuple[float, float]
    no_spread: tuple[float, float]
    alarms: Mapping[str, int]
    skipped: int


def findings(records: Mapping[str, Record]) -> list[Finding]:
    """One finding per variant, best first."""
    least = min(np.sum(record["metrics"]["environment_steps"], axis=0).min() for record in records.values())
    found = [_finding(name, record, least) for name, record in records.items()]
    return sorted(found, key=lambda f: -f.sampled["mean"])


def _finding(name: str, record: Record, least: float) -> Finding:
    metrics = {key: np.array(value, np.float64) for key, value in record["metrics"].items()}
    start, sampled = _outcomes(record, "start", "sampled"), _outcomes(record, "end", "sampled")
    raised = {alarm.name: sum(alarm.name in of_seed for of_seed in record["alarms"]) for alarm in ALARMS}

    def first_and_last(key):
        return float(np.nanmean(metrics[key][:5])), float(np.nanmean(metrics[key][-5:]))

    return Finding(
        name=name,
        start=crossed_interval(start),
        sampled=crossed_interval(sampled),
        greedy=crossed_interval(_outcomes(record, "end", "greedy")),
        gain=crossed_interval(sampled - start),
        steps=float(metrics["environment_steps"].sum(axis=0).mean()),
        at_equal_steps=crossed_interval(_at_steps(record, least)[:, None]),
        entropy=first_and_last("actor/entropy"),
        no_spread=first_and_last("rollout/zero_std_share"),
        alarms={alarm: count for alarm, count in raised.items() if count},
        skipped=int(np.nansum(metrics["update/skipped"])),
    )


def _outcomes(record: Record, when: str, how: str) -> Float[np.ndarray, "S n"]:
    return np.asarray(record[when][how], np.float64)


def _at_steps(record: Record, steps: float) -> Float[np.ndarray, " S"]:
    """Validation success at a number of environment steps, interpolated linearly between validations."""
    spent = np.cumsum(np.array(record["metrics"]["environment_steps"], np.float64), axis=0)
    spent = np.concatenate([np.zeros((1, spent.shape[1])), spent])[record["validation"]["iteration"]]
    success = np.array(record["validation"]["success"], np.float64)
    return np.array([np.interp(steps, x, y) for x, y in zip(spent.T, success.T)])


def _band(success: Float[np.ndarray, "k S"]) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """95 % bootstrap band of the mean over seeds; the success itself if there is one seed."""
    if success.shape[1] == 1:
        return success[:, 0], success[:, 0]
    found = stats.bootstrap((success,), np.mean, axis=1, method="percentile", rng=np.random.default_rng(0))
    return found.confidence_interval


def _table(found: Sequence[Finding]) -> list[str]:
    """The findings as lines of a Markdown table."""
    lines = [
        "| variant | sampled | greedy | gain (sampled) | at equal environment steps | environment steps | entropy, "
        "first → last | groups without spread | alarms (seeds) | skipped steps |",
        "| --- | --- | --- | --- | --- | ---: | --- | --- | --- | ---: |",
    ]
    for f in found:
        alarms = ", ".join(f"{name} {count}" for name, count in f.alarms.items()) or "none"
        cells = (
            f.name,
            _percent(f.sampled),
            _percent(f.greedy),
            _points(f.gain),
            _percent(f.at_equal_steps),
            f"{f.steps:,.0f}",
            f"{f.entropy[0]:.2f} → {f.entropy[1]:.2f}",
            f"{f.no_spread[0]:.0%} → {f.no_spread[1]:.0%}",
            alarms,
            str(f.skipped),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def page(records: Mapping[str, Record], pairs: Sequence[tuple[str, str]], title: str, figure: str) -> str:
    """The whole report in Markdown; `figure` is the file name of the figure in the same folder.

    For each pair (a, b) of finished variants it has the differences a - b of success, paired by seed.
    """
    first = next(iter(records.values()))
    levels, seeds = len(first["end"]["sampled"][0]), len(first["seeds"])
    known = ", ".join(f"{name} play {value:.1%}" for name, value in first["baselines"].items()) or "not known"
    lines = [
        f"# {title}",
        "",
        f"{seeds} seeds a variant, {len(first['iteration'])} iterations, {levels} held-out levels (the same for all), "
        f"where other policies reach: {known}. In brackets 95 % intervals, over seeds and levels at the end and over "
        "seeds between; a gain and a difference are paired by seed and level.",
        "",
        *_table(findings(records)),
        "",
    ]
    compared = [(a, b) for a, b in pairs if a in records and b in records]
    if compared:
        lines += ["| difference | sampled | greedy |", "| --- | --- | --- |"]
        for a, b in compared:
            ends = [
                (_outcomes(records[a], "end", how), _outcomes(records[b], "end", how)) for how in ("sampled", "greedy")
            ]
            lines += [f"| {a} − {b} | {' | '.join(_points(crossed_interval(x - y)) for x, y in ends)} |"]
        lines += [""]
    return "\n".join([*lines, f"![Success of every variant]({figure})", ""])


def _percent(x: Interval) -> str:
    return f"{x['mean']:.1%} [{100 * x['low']:.1f}, {100 * x['high']:.1f}]"


def _points(x: Interval) -> str:
    return f"{100 * x['mean']:+.1f} [{100 * x['low']:+.1f}, {100 * x['high']:+.1f}]"


def draw(records: Mapping[str, Record], path: str | os.PathLike[str], title: str) -> None:
    """One subplot per variant: validation success with its band over seeds, and the other variants' means behind it."""
    columns = min(6, len(records))
    rows = -(-len(records) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.1 * rows + 0.5), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    validations = {name: record["validation"] for name, record in records.items()}
    curves = {name: (v["iteration"], np.array(v["success"], np.float64)) for name, v in validations.items()}
    for axis, (name, (x, success)) in zip(axes, curves.items()):
        for other_x, other in curves.values():
            axis.plot(other_x, other.mean(axis=1), color=_GRAY, linewidth=0.6, alpha=0.5)
        axis.fill_between(x, *_band(success), color=_BLUE, alpha=0.2, linewidth=0)
        axis.plot(x, success.mean(axis=1), color=_BLUE, linewidth=2.0)
        for (what, value), style in zip(records[name]["baselines"].items(), (":", "--")):
            axis.axhline(value, color="#334155", linewidth=1.0, linestyle=style)
            if axis is axes[0]:
                at = {"xy": (0.99, value), "xycoords": ("axes fraction", "data"), "xytext": (0, 2)}
                axis.annotate(what, **at, textcoords="offset points", ha="right", fontsize=7, color="#334155")
        axis.set_title(name, loc="left", fontsize=9)
        axis.tick_params(labelsize=7)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(curves) :]:
        axis.set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel("iteration", fontsize=8)
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, format="png", dpi=120)
