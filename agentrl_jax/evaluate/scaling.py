"""Test-time scaling: the success of a run as a function of turns, tokens per response, samples and retries.

One budget changes at a time, on the same levels with the same seed; the others are those of the run. More turns than in
training show whether an agent goes on beyond its horizon.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from agentrl_jax.errors import UserError, counted
from agentrl_jax.evaluate.eval_set import evaluate_run
from agentrl_jax.evaluate.interval_text import BASELINES
from agentrl_jax.evaluate.limits import Limits
from agentrl_jax.evaluate.results import gap_closed
from agentrl_jax.evaluate.retry import MOST_ATTEMPTS
from agentrl_jax.evaluate.selectors import Selector
from agentrl_jax.evaluate.statistics import Clusters, any_of, pass_all, pass_at, success_interval
from agentrl_jax.io import atomic_write
from agentrl_jax.runs.curves import COLORS, GRAY, Subplot, set_style
from agentrl_jax.runs.run_folder import read_config

TITLES = {
    "turns": ("success by turns of an episode", "most turns"),
    "tokens": ("success by tokens of a response", "most tokens of a response"),
    "samples": ("success by samples of a level", "samples"),
    "attempts": ("success by attempts at a level", "most attempts (a retry reads the success signal)"),
    "step": ("success by checkpoint", "step: chunks of imitation, then iterations"),
}
"""Title and horizontal axis of the subplot of each axis."""

_LIMIT_LINES = {
    "success": "sampled",
    "success_greedy": "greedy",
    "success_answered": "answered episodes",
    "success_all": "all episodes",
}
_LINES = {
    "turns": _LIMIT_LINES,
    "tokens": _LIMIT_LINES,
    "step": _LIMIT_LINES,
    "samples": {"pass_at": "pass@k", "pass_all": "pass^k", "best_of": "best of k by {selector}"},
    "attempts": {
        "retry": "retries with feedback",
        "retry_greedy": "greedy retries with feedback",
        "pass_at": "pass@k, no feedback",
        "retry_answered": "retries with feedback, answered items",
        "retry_all": "retries with feedback, all items",
        "pass_at_all": "pass@k, no feedback, all items",
    },
}
KEPT = (
    *("success", "success_greedy", "null", "random", "optimal", "optimal_is", "baseline_turns"),
    *("gap_closed", "mean_turns", "mean_tokens"),
)
"""What is kept of a result of `evaluate_run` at a point of an axis."""


def scale(
    run: str | os.PathLike[str],
    *,
    turns: Sequence[int] = (),
    tokens: Sequence[int] = (),
    samples: Sequence[int] = (),
    attempts: Sequence[int] = (),
    selector: Selector | None = None,
    record: str | os.PathLike[str] | None = None,
    report: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> dict[str, Any]:
    """Evaluates a run with other limits of turns and of tokens, with several samples, and with retries.

    The conversations of the largest number of `attempts` are recorded in the new folder `record`, if given.
    `selector` also takes the best of k samples, see `selectors`. `options` are those of `evaluate_run` for one play;
    with a panel, its levels are played, but not its limit of actions where `turns` are more than the run's.

    Returns:
        run, env, iteration, episodes, seed, temperature; `trained`, the run's own turns and tokens; `axes`, with a list
        for each axis that was given. A point of turns or tokens has this number, `success` and `success_greedy`,
        `null`, `random` and `optimal` within these limits, and what else `evaluate_run` knows; a point of samples has
        `samples` (k), `pass_at`, `pass_all`, with a selector `best_of`, `mean_turns` and `mean_tokens` of all k
        samples, and `null`, `random` and `optimal`, the probability that one of k plays succeeds (in services, where
        only single plays are known, for k = 1 alone); a point of attempts has `attempts`, what `retry.rates` describes,
        and the same three lines. Beside these lines stands `gap_closed`, the share of the difference between random and
        optimal play that `success`, `pass_at` or `retry` closes. With attempts there is also a `retry` with the
        feedback, and what else `retry.evaluate` knows of all of them.

    Raises:
        UserError: no axis is given, a number is not usable, or as in `evaluate_run`.
    """
    limits = {"turns": turns, "tokens": tokens}
    check_axes(limits | {"samples": samples, "attempts": attempts}, selector)
    config = read_config(run)
    axes: dict[str, list[dict[str, Any]]] = {axis: [] for axis, numbers in limits.items() if numbers}
    found: dict[str, Any] = {}
    retry: dict[str, Any] = {}
    if samples or attempts:  # first, because the record, the selector or retries may be refused
        best: dict[str, Any] = {} if selector is None else {"best_of": tuple(samples), "selector": selector}
        found = evaluate_run(
            run, samples=max((1, *samples)), attempts=tuple(attempts), record=record, report=report, **best, **options
        )
        clusters = found["outcomes"]["categories"] if options.get("clusters") else None
        axes |= {"samples": [_of_samples(found, k, clusters) for k in samples]} if samples else {}
        axes |= {"attempts": [_of_attempts(found, k, clusters) for k in attempts]} if attempts else {}
        retry = found.get("retry", {})
    for axis, numbers in limits.items():
        for number in reversed(numbers):  # the largest first: what does not fit is refused early
            report(f"{axis} {number}")
            found = evaluate_run(run, limits=Limits(**{axis: number}), report=report, **options)
            axes[axis].insert(0, {axis: number, **{name: found[name] for name in KEPT if name in found}})
    named = {name: found[name] for name in ("env", "iteration", "episodes", "seed", "temperature")}
    named |= {"panel": found["panel"]} if "panel" in found else {}
    named |= {"selector": selector} if selector is not None else {}
    named |= {"retry": {name: x for name, x in retry.items() if name != "attempts"}} if attempts else {}
    trained = {"turns": config.prompt.max_turns, "tokens": config.prompt.max_response_tokens}
    return {"run": Path(run).resolve().name, **named, "trained": trained, "axes": axes}


def check_axes(axes: Mapping[str, Sequence[int]], selector: Selector | None) -> None:
    """Raises a `UserError` if no axis is given, or the numbers of one cannot be used."""
    most = {"attempts": MOST_ATTEMPTS}
    for name, numbers in axes.items():
        least, largest = 2 if name == "tokens" else 1, most.get(name, 2**16)
        if list(numbers) != sorted(set(numbers)) or any(not least <= number <= largest for number in numbers):
            listed = ",".join(map(str, numbers))
            raise UserError.of(f"--{name}", listed, f"expected ascending numbers from {least} to {largest}")
    if not any(axes.values()):
        raise UserError(
            "no axis is given; expected --turns, --tokens, --samples or --attempts with numbers such as 5,10,20",
            key="--turns",
        )
    if selector is not None and not axes["samples"]:
        raise UserError.of("--selector", selector, "which is read only with --samples; give it too")


def _of_samples(found: dict[str, Any], k: int, clusters: Clusters) -> dict[str, Any]:
    outcomes = found["outcomes"]
    success = np.array(outcomes["samples"], bool)
    point: dict[str, Any] = {"samples": k}
    for name, of in {"pass_at": pass_at, "pass_all": pass_all}.items():
        point[name] = success_interval(of(success, k), clusters=clusters)
    if "best_of" in found:
        point["best_of"] = found["best_of"]["success"][str(k)]
    point |= {name: k * found[name] for name in ("mean_turns", "mean_tokens")}
    return point | _of_plays(found, k, clusters, point["pass_at"]["mean"])


def _of_attempts(found: dict[str, Any], k: int, clusters: Clusters) -> dict[str, Any]:
    point = found["retry"]["attempts"][str(k)]
    return {"attempts": k, **point, **_of_plays(found, k, clusters, point["retry"]["mean"])}


def _of_plays(found: dict[str, Any], k: int, clusters: Clusters, success: float) -> dict[str, Any]:
    """Success of null, random and optimal play within k plays, and the share of the gap that a success closes."""
    outcomes = found["outcomes"]
    if "optimal_is" not in found or (found["optimal_is"] == "scripted" and k > 1):
        return {}
    lines: dict[str, Any] = {
        line: success_interval(any_of(outcomes[line], k), clusters=clusters) for line in BASELINES if line in outcomes
    }
    return lines | {"gap_closed": gap_closed(success, lines["random"]["mean"], lines["optimal"]["mean"])}


def plot_scaling(found: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Plots the axes of `scale` into a PNG with intervals, random and optimal play; the file is replaced atomically."""
    axes = found["axes"]
    figure = Figure(figsize=(4.6 * len(axes), 4.0), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    for axis, (name, points) in zip(figure.subplots(1, len(axes), squeeze=False).flat, axes.items()):
        _draw(axis, name, points, found.get("trained", {}).get(name), found.get("selector", ""))
    title = f"{found['run']} on {counted(found['episodes'], 'level')} of {found['env']}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", parse_math=False)
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, format="png", dpi=130)


def _draw(axis: Axes, name: str, points: list[dict[str, Any]], trained: int | None, selector: str) -> None:
    title, label = TITLES[name]
    numbers = [point[name] for point in points]
    for color, (key, legend) in zip(COLORS, _LINES[name].items()):
        known = [point for point in points if point.get(key) is not None]
        if not known:
            continue
        at = [point[name] for point in known]
        mean, low, high = ([point[key][bound] for point in known] for bound in ("mean", "low", "high"))
        axis.plot(
            at,
            mean,
            color=color,
            linewidth=1.8,
            marker="o",
            markersize=3.5,
            label=legend.format(selector=selector),
        )
        axis.fill_between(at, low, high, color=color, alpha=0.12, linewidth=0)
    for key, style in (("random", ":"), ("optimal", "--")):
        if all(key in point for point in points):
            means = [point[key]["mean"] for point in points]
            axis.plot(numbers, means, color=GRAY, linewidth=1.2, linestyle=style, label=f"{key} play")
    if trained is not None and numbers[0] <= trained <= numbers[-1]:
        axis.axvline(trained, color=GRAY, linewidth=0.8, alpha=0.5)
        axis.annotate("in training", xy=(trained, 0.02), fontsize=7, color=GRAY, rotation=90, ha="right", va="bottom")
    if name != "step":
        if len(numbers) > 1 and numbers[-1] > 4 * numbers[0]:
            axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(FixedLocator(numbers))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(ScalarFormatter())
    set_style(axis, Subplot(title, (), is_share=True), label)
    if axis.lines:
        # Below the axis, where no line or band is.
        axis.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
