"""Test-time scaling: the success of a run as a function of turns, tokens per response and samples.

One budget changes at a time, on the same levels with the same seed; the others are those of the run. More turns than in
training show whether an agent goes on beyond its horizon.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.eval_set import evaluate_run
from agentrl_jax.evaluate.limits import Limits
from agentrl_jax.evaluate.selectors import Selector
from agentrl_jax.evaluate.statistics import pass_all, pass_at, success_interval
from agentrl_jax.io import atomic_write
from agentrl_jax.runs.curves import COLORS, GRAY, Subplot, set_style
from agentrl_jax.runs.run_folder import read_config

TITLES = {
    "turns": ("success by turns of an episode", "most turns"),
    "tokens": ("success by tokens of a response", "most tokens of a response"),
    "samples": ("success by samples of a level", "samples"),
}
"""Title and horizontal axis of the subplot of each axis."""

_LIMIT_LINES = {"success": "sampled", "success_greedy": "greedy"}
_SAMPLE_LINES = {"pass_at": "pass@k", "pass_all": "pass^k", "best_of": "best of k"}
_KEPT = ("success", "success_greedy", "random", "optimal", "optimal_is", "gap_closed", "mean_turns", "mean_tokens")


def scale(
    run: str | os.PathLike[str],
    *,
    turns: Sequence[int] = (),
    tokens: Sequence[int] = (),
    samples: Sequence[int] = (),
    selector: Selector | None = None,
    report: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> dict[str, Any]:
    """Evaluates a run with other limits of turns and of tokens, and with several samples.

    `selector` also takes the best of k samples, see `selectors`. `options` are those of `evaluate_run` but its samples;
    with a panel, its levels are played, but not its limit of actions where `turns` are more than the run's.

    Returns:
        run, env, iteration, episodes, seed, temperature; `trained`, the run's own turns and tokens; `axes`, with a list
        for each axis that was given. A point of turns or tokens has this number, `success` and `success_greedy`,
        `random` and `optimal` within these limits, and what else `evaluate_run` knows; a point of samples has
        `samples` (k), `pass_at`, `pass_all`, with a selector `best_of`, and `random` and `optimal`, the probability
        that one of k plays succeeds (not for services, whose lines are single plays).

    Raises:
        UserError: no axis is given, a number is not usable, or as in `evaluate_run`.
    """
    limits = {"turns": turns, "tokens": tokens}
    for name, numbers, least in (("turns", turns, 1), ("tokens", tokens, 2), ("samples", samples, 1)):
        if list(numbers) != sorted(set(numbers)) or any(not least <= number <= 2**16 for number in numbers):
            listed = ",".join(map(str, numbers))
            raise UserError(f"--{name} is {listed}; expected ascending numbers from {least} to {2**16}")
    if not (turns or tokens or samples):
        raise UserError("no axis is given; expected --turns, --tokens or --samples with numbers such as 5,10,20")
    if selector is not None and not samples:
        raise UserError(f"--selector is {selector}, which is read only with --samples; give it too")
    prompt = read_config(run).prompt
    axes: dict[str, list[dict[str, Any]]] = {}
    found: dict[str, Any] = {}
    for axis, numbers in limits.items():
        points = []
        for number in reversed(numbers):  # the largest first: what does not fit is refused early
            report(f"{axis} {number}")
            found = evaluate_run(run, limits=Limits(**{axis: number}), report=report, **options)
            points.append({axis: number, **{name: found[name] for name in _KEPT if name in found}})
        if points:
            axes[axis] = points[::-1]
    if samples:
        best: dict[str, Any] = {} if selector is None else {"best_of": tuple(samples), "selector": selector}
        found = evaluate_run(run, samples=max(samples), report=report, **best, **options)
        axes["samples"] = [_of_samples(found, k) for k in samples]
    named = {name: found[name] for name in ("env", "iteration", "episodes", "seed", "temperature")}
    named |= {"panel": found["panel"]} if "panel" in found else {}
    named |= {"selector": selector} if selector is not None else {}
    trained = {"turns": prompt.max_turns, "tokens": prompt.max_response_tokens}
    return {"run": Path(run).resolve().name, **named, "trained": trained, "axes": axes}


def _of_samples(found: dict[str, Any], k: int) -> dict[str, Any]:
    outcomes = found["outcomes"]
    success = np.array(outcomes["samples"], bool)
    point: dict[str, Any] = {"samples": k}
    point |= {"pass_at": success_interval(pass_at(success, k)), "pass_all": success_interval(pass_all(success, k))}
    if "best_of" in found:
        point["best_of"] = found["best_of"]["success"][str(k)]
    if found.get("optimal_is", "scripted") != "scripted":
        for line in ("random", "optimal"):
            point[line] = success_interval(1 - (1 - np.array(outcomes[line])) ** k)
    return point


def plot_scaling(found: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Plots the axes of `scale` into a PNG with intervals, random and optimal play; the file is replaced atomically."""
    axes = found["axes"]
    figure = Figure(figsize=(4.6 * len(axes), 3.5), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    for axis, (name, points) in zip(figure.subplots(1, len(axes), squeeze=False).flat, axes.items()):
        _draw(axis, name, points, found["trained"].get(name))
    title = f"{found['run']} on {found['episodes']} levels of {found['env']}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    with atomic_write(path, binary=True) as file:
        figure.savefig(file, format="png", dpi=130)


def _draw(axis: Axes, name: str, points: list[dict[str, Any]], trained: int | None) -> None:
    title, label = TITLES[name]
    numbers = [point[name] for point in points]
    lines = _SAMPLE_LINES if name == "samples" else _LIMIT_LINES
    for color, (key, legend) in zip(COLORS, lines.items()):
        if key not in points[0]:
            continue
        mean, low, high = ([point[key][bound] for point in points] for bound in ("mean", "low", "high"))
        axis.plot(numbers, mean, color=color, linewidth=1.8, marker="o", markersize=3.5, label=legend)
        axis.fill_between(numbers, low, high, color=color, alpha=0.12, linewidth=0)
    for key, style in (("random", ":"), ("optimal", "--")):
        if all(key in point for point in points):
            known = [point[key]["mean"] for point in points]
            axis.plot(numbers, known, color=GRAY, linewidth=1.2, linestyle=style, label=f"{key} play")
    if trained is not None and numbers[0] <= trained <= numbers[-1]:
        axis.axvline(trained, color=GRAY, linewidth=0.8, alpha=0.5)
        axis.annotate("in training", xy=(trained, 1.0), fontsize=7, color=GRAY, rotation=90, ha="right", va="top")
    if len(numbers) > 1 and numbers[-1] > 4 * numbers[0]:
        axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(numbers))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(ScalarFormatter())
    set_style(axis, Subplot(title, (), is_share=True), label)
    axis.legend(fontsize=8, frameon=False, loc="best")
