"""Results of a comparison of learning rules: a table, a figure and a page.

Shapes: `S` seeds, `n` held-out levels, `k` validations, `I` iterations.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy import stats

from agentrl_jax.algos.collapse import ALARMS
from agentrl_jax.evaluate.statistics import crossed_interval
from agentrl_jax.io import atomic_write

Interval = dict[str, float | int]
_GRAY, _BLUE = "#94a3b8", "#2563eb"


@dataclasses.dataclass(frozen=True)
class Finding:
    """Results of one variant.

    Attributes:
        name: name of the variant.
        start: sampled success before training.
        sampled, greedy: success after training, over seeds and held-out levels.
        gain: sampled success after training minus that before, paired by seed on the same levels.
        steps: mean environment steps per seed.
        at_equal_steps: sampled validation success at the total environment steps of the variant that used the fewest,
            with its interval over seeds.
        entropy: entropy per token in nats, mean of the first and of the last five iterations.
        no_spread: share of groups whose returns are all equal, mean of the first and of the last five iterations.
        alarms: number of seeds that raised each alarm, by alarm name.
        skipped: gradient steps that were skipped, over all seeds.
    """

    name: str
    start: Interval
    sampled: Interval
    greedy: Interval
    gain: Interval
    steps: float
    at_equal_steps: Interval
    entropy: tuple[float, float]
    no_spread: tuple[float, float]
    alarms: Mapping[str, int]
    skipped: int


def findings(records: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """One finding per variant, best first."""
    least = min(np.sum(record["metrics"]["environment_steps"], axis=0).min() for record in records.values())
    found = [_finding(name, record, least) for name, record in records.items()]
    return sorted(found, key=lambda f: -f.sampled["mean"])


def differences(
    records: Mapping[str, Mapping[str, Any]], pairs: Sequence[tuple[str, str]]
) -> list[tuple[str, str, Interval, Interval]]:
    """For each pair (a, b) of finished variants: a - b of sampled and of greedy success, paired by seed."""
    found = []
    for a, b in pairs:
        if a in records and b in records:
            sampled, greedy = (_end(records[a], how) - _end(records[b], how) for how in ("sampled", "greedy"))
            found.append((a, b, crossed_interval(sampled), crossed_interval(greedy)))
    return found


def _end(record: Mapping[str, Any], how: str) -> np.ndarray:
    return np.asarray(record["end"][how], np.float64)


def _finding(name: str, record: Mapping[str, Any], least: float) -> Finding:
    metrics = {key: np.array(value, np.float64) for key, value in record["metrics"].items()}
    start = np.asarray(record["start"]["sampled"], np.float64)
    raised = {alarm.name: sum(alarm.name in of_seed for of_seed in record["alarms"]) for alarm in ALARMS}

    def ends(key):
        return float(np.nanmean(metrics[key][:5])), float(np.nanmean(metrics[key][-5:]))

    return Finding(
        name=name,
        start=crossed_interval(start),
        sampled=crossed_interval(_end(record, "sampled")),
        greedy=crossed_interval(_end(record, "greedy")),
        gain=crossed_interval(_end(record, "sampled") - start),
        steps=float(metrics["environment_steps"].sum(axis=0).mean()),
        at_equal_steps=crossed_interval(_at_steps(record, least)[:, None]),
        entropy=ends("actor/entropy"),
        no_spread=ends("rollout/zero_std_share"),
        alarms={alarm: count for alarm, count in raised.items() if count},
        skipped=int(np.nansum(metrics["update/skipped"])),
    )


def _at_steps(record: Mapping[str, Any], steps: float) -> np.ndarray:
    """Validation success f64[S] at a number of environment steps, interpolated linearly between validations."""
    spent = np.cumsum(np.array(record["metrics"]["environment_steps"], np.float64), axis=0)
    spent = np.concatenate([np.zeros((1, spent.shape[1])), spent])[record["validation"]["iteration"]]
    success = np.array(record["validation"]["success"], np.float64)
    return np.array([np.interp(steps, x, y) for x, y in zip(spent.T, success.T)])


def band(success: np.ndarray, *, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Bootstrap band [k], [k] of the mean over seeds of `success` [k, S]; the mean itself if all seeds agree."""
    if success.shape[1] == 1:
        return success[:, 0], success[:, 0]
    found = stats.bootstrap(
        (success,), np.mean, axis=1, confidence_level=level, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return found.low, found.high


def table(found: Sequence[Finding]) -> list[str]:
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


def page(records: Mapping[str, Mapping[str, Any]], pairs: Sequence[tuple[str, str]], title: str, figure: str) -> str:
    """The whole report in Markdown; `figure` is the file name of the figure beside it."""
    first = next(iter(records.values()))
    levels, seeds = len(first["end"]["sampled"][0]), len(first["seeds"])
    known = ", ".join(f"{name} play {value:.1%}" for name, value in first["baselines"].items()) or "not known"
    lines = [
        f"# {title}",
        "",
        f"{seeds} seeds a variant, {len(first['iteration'])} iterations, {levels} held-out levels (the same for all), "
        f"on which exact values are: {known}. In brackets 95 % intervals, over seeds and levels at the end and over "
        "seeds between; a gain and a difference are paired by seed and level.",
        "",
        *table(findings(records)),
        "",
    ]
    compared = differences(records, pairs)
    if compared:
        lines += ["| difference | sampled | greedy |", "| --- | --- | --- |"]
        lines += [f"| {a} − {b} | {_points(sampled)} | {_points(greedy)} |" for a, b, sampled, greedy in compared]
        lines += [""]
    return "\n".join([*lines, f"![Success of every variant]({figure})", ""])


def _percent(x: Interval) -> str:
    return f"{x['mean']:.1%} [{100 * x['low']:.1f}, {100 * x['high']:.1f}]"


def _points(x: Interval) -> str:
    return f"{100 * x['mean']:+.1f} [{100 * x['low']:+.1f}, {100 * x['high']:+.1f}]"


def draw(records: Mapping[str, Mapping[str, Any]], path: str | os.PathLike[str], title: str) -> None:
    """One subplot per variant: validation success with its band over seeds, and the other variants' means behind it."""
    columns = min(6, len(records))
    rows = -(-len(records) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.1 * rows + 0.5), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    curves = {name: (_iterations(r), np.array(r["validation"]["success"], np.float64)) for name, r in records.items()}
    for axis, (name, (x, success)) in zip(axes, curves.items()):
        for other_x, other in curves.values():
            axis.plot(other_x, other.mean(axis=1), color=_GRAY, linewidth=0.6, alpha=0.5)
        axis.fill_between(x, *band(success), color=_BLUE, alpha=0.2, linewidth=0)
        axis.plot(x, success.mean(axis=1), color=_BLUE, linewidth=2.0)
        for (what, value), style in zip(records[name]["baselines"].items(), (":", "--")):
            axis.axhline(value, color="#334155", linewidth=1.0, linestyle=style)
            if axis is axes[0]:
                place = {"xy": (0.99, value), "xycoords": ("axes fraction", "data"), "xytext": (0, 2)}
                axis.annotate(what, **place, textcoords="offset points", ha="right", fontsize=7, color="#334155")
        axis.set_title(name, loc="left", fontsize=9)
        axis.tick_params(labelsize=7)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    for axis in axes[len(curves) :]:
        axis.set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel("iteration", fontsize=8)
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, format="png", dpi=120)


def _iterations(record: Mapping[str, Any]) -> list[int]:
    return record["validation"]["iteration"]
