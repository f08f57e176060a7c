"""Results of a comparison of learning rules: a table, a figure and a page.

Records are those of `variants.Variants.run`. Dimensions: `S` seeds, `n` held-out levels, `k` validations.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from agentrl_jax.algos.collapse import ALARMS
from agentrl_jax.evaluate.results import gap_closed
from agentrl_jax.evaluate.statistics import (
    MOST_SEEDS,
    crossed_interval,
    crossed_success_interval,
    paired_interval,
    seeds_needed,
    success_interval,
)
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
    gap_closed: float | None
    """Share of the difference between random and optimal play that sampled success closes; None if unknown."""
    turns: float | None
    tokens: float | None
    """Means of a sampled episode at the end; None in records of earlier versions."""
    steps: float
    """Mean environment steps per seed."""
    at_equal_steps: Interval
    """Sampled validation success at the total environment steps of the variant that used the fewest, over seeds.

    One seed has no interval, only a mean."""
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
        start=_rate(start),
        sampled=_rate(sampled),
        greedy=_rate(_outcomes(record, "end", "greedy")),
        gain=_difference(sampled, start),
        gap_closed=_gap_closed(float(sampled.mean()), record["baselines"]),
        turns=_mean_used(record, "mean_turns"),
        tokens=_mean_used(record, "mean_tokens"),
        steps=float(metrics["environment_steps"].sum(axis=0).mean()),
        at_equal_steps=_over_seeds(_at_steps(record, least)),
        entropy=first_and_last("actor/entropy"),
        no_spread=first_and_last("rollout/zero_std_share"),
        alarms={alarm: count for alarm, count in raised.items() if count},
        skipped=int(np.nansum(metrics["update/skipped"])),
    )


def _gap_closed(success: float, baselines: Mapping[str, float]) -> float | None:
    optimal = next((value for name, value in baselines.items() if name.startswith("optimal")), None)
    return None if optimal is None else gap_closed(success, baselines["random"], optimal)


def _mean_used(record: Record, what: str) -> float | None:
    return float(np.mean(record["used"][what])) if "used" in record else None


def baselines_line(record: Record) -> str:
    """What random, null and optimal play reach on the levels of a record, in words."""
    return ", ".join(f"{name} play {value:.1%}" for name, value in record["baselines"].items()) or "not known"


def _rate(outcomes: Float[np.ndarray, "S n"]) -> Interval:
    """The mean over seeds and levels with its interval; of one seed, that over levels."""
    found = crossed_success_interval(outcomes)
    if len(outcomes) > 1 and found["low"] < found["high"]:
        return found
    # Where nothing varies there is no variance to estimate, which does not mean that nothing is uncertain.
    return success_interval(outcomes.ravel(), clusters=_seeds(outcomes))


def _difference(a: Float[np.ndarray, "S n"], b: Float[np.ndarray, "S n"]) -> Interval:
    """As `_rate`, of a - b, paired by seed and level."""
    found = crossed_interval(a - b)
    if len(a) > 1 and found["low"] < found["high"]:
        return found
    return paired_interval(a.ravel(), b.ravel(), clusters=_seeds(a))


def _over_seeds(success: Float[np.ndarray, " S"]) -> Interval:
    if len(success) == 1:
        return {"mean": float(success[0]), "n": 1}
    return _rate(success[:, None])


def _seeds(outcomes: Float[np.ndarray, "S n"]) -> list[str] | None:
    """The seed of each outcome as its cluster; None for one seed, whose levels are independent."""
    number, levels = outcomes.shape
    return None if number == 1 else np.repeat(np.arange(number), levels).astype(str).tolist()


def _outcomes(record: Record, when: str, how: str) -> Float[np.ndarray, "S n"]:
    return np.asarray(record[when][how], np.float64)


def _at_steps(record: Record, steps: float) -> Float[np.ndarray, " S"]:
    """Validation success at a number of environment steps, interpolated linearly between validations."""
    spent = np.cumsum(np.array(record["metrics"]["environment_steps"], np.float64), axis=0)
    spent = np.concatenate([np.zeros((1, spent.shape[1])), spent])[record["validation"]["iteration"]]
    success = np.array(record["validation"]["success"], np.float64)
    return np.array([np.interp(steps, x, y) for x, y in zip(spent.T, success.T)])


def _band(success: Float[np.ndarray, "k S"]) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """95 % interval of the mean over seeds at each validation; the success itself if there is one seed."""
    found = [_over_seeds(of_seeds) for of_seeds in success]
    low, high = (np.array([x.get(bound, x["mean"]) for x in found], np.float64) for bound in ("low", "high"))
    return low, high


def _table(found: Sequence[Finding]) -> list[str]:
    """The findings as lines of a Markdown table."""
    lines = [
        "| variant | sampled | greedy | gain (sampled) | gap closed | turns | tokens | at equal environment steps | "
        "environment steps | entropy, first → last | groups without spread | alarms (seeds) | skipped steps |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | --- | ---: | --- | --- | --- | ---: |",
    ]
    for f in found:
        alarms = ", ".join(f"{name} {count}" for name, count in f.alarms.items()) or "none"
        cells = (
            f.name,
            _percent(f.sampled),
            _percent(f.greedy),
            _points(f.gain),
            "-" if f.gap_closed is None else f"{f.gap_closed:.1%}",
            "-" if f.turns is None else f"{f.turns:.1f}",
            "-" if f.tokens is None else f"{f.tokens:.1f}",
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
    known = baselines_line(first)
    over = "over seeds and levels at the end and over seeds between" if seeds > 1 else "over levels alone"
    number = f"{seeds} seeds" if seeds > 1 else "1 seed"
    same = " (the same for all)" if len({record["test_levels"] for record in records.values()}) == 1 else ""
    lines = [
        f"# {title}",
        "",
        f"{number} a variant, {len(first['iteration'])} iterations, {levels} held-out levels{same}, "
        f"where other policies reach: {known}. In brackets 95 % intervals, {over}; a gain and a difference are paired "
        "by seed and level.",
        "",
        *_notes(records),
        *_table(findings(records)),
        "",
    ]
    compared = [(a, b) for a, b in pairs if a in records and b in records]
    if compared:
        lines += ["| difference | sampled | seeds that it needs | greedy |", "| --- | --- | ---: | --- |"]
        for a, b in compared:
            ends = [
                (_outcomes(records[a], "end", how), _outcomes(records[b], "end", how)) for how in ("sampled", "greedy")
            ]
            paired = all(records[a][key] == records[b][key] for key in ("start", "test_levels"))
            sampled, greedy = [_points(_difference(x, y)) if paired else "not paired" for x, y in ends]
            needed = seeds_needed(np.mean(ends[0][0] - ends[0][1], axis=1)) if paired else None
            lines += [f"| {a} − {b} | {sampled} | {'-' if needed is None else needed} | {greedy} |"]
        why = "The seeds that a difference needs: to be told from 0 at 5 % in 80 % of the cases, by a paired t test."
        lines += ["", f"{why} {MOST_SEEDS} stands for as many or more.", ""]
    return "\n".join([*lines, f"![Success of every variant]({figure})", ""])


def _notes(records: Mapping[str, Record]) -> list[str]:
    """Lines about variants that were not run under the same conditions as the first."""
    first, of_first = next(iter(records.items()))
    starts = [name for name, record in records.items() if record["start"] != of_first["start"]]
    levels = [name for name, record in records.items() if record["test_levels"] != of_first["test_levels"]]
    machines = [name for name, record in records.items() if record["machine"] != of_first["machine"]]
    lines = []
    if starts:
        lines += [f"Not from the starts of {first}, so that they are not paired with it: {', '.join(starts)}.", ""]
    if levels:
        lines += [
            f"Not on the held-out levels of {first}, so that they are not paired with it: {', '.join(levels)}.",
            "",
        ]
        other = (f"of {name} {baselines_line(records[name])}" for name in levels)
        lines += [f"Other policies reach on the levels {'; '.join(other)}.", ""]
    if machines:
        lines += [f"Not on the machine of {first}: {', '.join(machines)}.", ""]
    return lines


def _percent(x: Interval) -> str:
    if "low" not in x:
        return f"{x['mean']:.1%}"
    return f"{x['mean']:.1%} [{100 * x['low']:.1f}, {100 * x['high']:.1f}]"


def _points(x: Interval) -> str:
    return f"{100 * x['mean']:+.1f} [{100 * x['low']:+.1f}, {100 * x['high']:+.1f}]"


_CELL = re.compile(r"(?:(.+)-)?(\w+)=(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
"""A name that `config.comparison` gives: variant, last key of the grid, value."""


def by_value(records: Mapping[str, Record]) -> tuple[str, dict[str, dict[float, Record]]]:
    """The key of a grid of one number, and its records by variant and by value, from their names.

    ("", {}) where the records are not all of one such grid.
    """
    found: dict[str, dict[float, Record]] = {}
    named = [(_CELL.fullmatch(name), record) for name, record in records.items()]
    keys = {match[2] if match else "" for match, _ in named}
    if keys == {""} or len(keys) > 1:
        return "", {}
    for match, record in named:
        assert match is not None
        found.setdefault(match[1] or "all", {})[float(match[3])] = record
    return keys.pop(), found


def draw_values(records: Mapping[str, Record], path: str | os.PathLike[str], title: str) -> None:
    """Success at the end (sampled, 95 % intervals) by the value of a grid, a line for each variant, see `by_value`."""
    key, found = by_value(records)
    figure = Figure(figsize=(6.4, 3.6), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for index, (name, of_value) in enumerate(found.items()):
        values = np.array(sorted(of_value))
        rates = [_rate(_outcomes(of_value[value], "end", "sampled")) for value in values]
        mean, low, high = (np.array([rate[bound] for rate in rates]) for bound in ("mean", "low", "high"))
        shifted = values * 1.04 ** (index - (len(found) - 1) / 2)  # so that intervals do not cover each other
        axis.errorbar(shifted, mean, (mean - low, high - mean), label=name, marker="o", markersize=4, linewidth=1.5)
        axis.lines[-1].set_alpha(0.9)
    starts = np.mean([np.mean(_outcomes(record, "start", "sampled")) for record in records.values()])
    axis.axhline(starts, color="#334155", linewidth=1.0, linestyle=":", label="start")
    if all(value > 0 for of_value in found.values() for value in of_value):
        axis.set_xscale("log")
    axis.set_xlabel(key, fontsize=9)
    axis.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, format="png", dpi=120)


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
