"""Intervals of `statistics`, and the lines beside an agent, as text for tables.

The bounds of a single value that is no outcome, such as an exact probability, are the value itself, because nothing is
known of its spread. They are not shown.
"""

from collections.abc import Mapping
from typing import Any

Interval = Mapping[str, float | int]

BASELINES = ("null", "random", "optimal")
"""Names of the lines beside an agent in the order of tables."""


def baseline_title(result: Mapping[str, Any], name: str) -> str:
    """The title of null, random or optimal play in the table of a result."""
    # Commands import this module whether or not they need JAX, which `envs_jax` imports.
    from envs_jax.budget import EXACT, optimal_label

    title = f"{name} play"
    return optimal_label(result.get("optimal_is", EXACT), title) if name == "optimal" else title


def baseline_turns(result: Mapping[str, Any]) -> str | None:
    """A line with the turns of null, random and optimal play, as far as a result has them; None without any."""
    turns = result.get("baseline_turns", {})
    known = [f"{turns[name]:.1f} {name}" for name in BASELINES if name in turns]
    return f"turns per episode of the other lines: {', '.join(known)}" if known else None


def rate(interval: Interval) -> str:
    """A share in percent, with its bounds."""
    return f"{interval['mean']:.1%}" + _bounds(interval, ".1f", 100)


def points(interval: Interval) -> str:
    """A difference of shares in points, with its bounds."""
    return f"{100 * interval['mean']:+.1f}" + _bounds(interval, "+.1f", 100)


def number(interval: Interval) -> str:
    """A number with its bounds."""
    return f"{interval['mean']:.1f}" + _bounds(interval, ".1f", 1)


def cells(interval: Interval, form: str = ".1%") -> dict[str, str]:
    """Mean, low and high, each as a cell of a table."""
    shown = {name: format(interval[name], form) for name in ("mean", "low", "high")}
    return shown if _has_bounds(interval) else shown | {"low": "-", "high": "-"}


def _bounds(interval: Interval, form: str, scale: int) -> str:
    low, high = (format(scale * interval[bound], form) for bound in ("low", "high"))
    return f" [{low}, {high}]" if _has_bounds(interval) else ""


def _has_bounds(interval: Interval) -> bool:
    return interval["n"] > 1 or interval["low"] < interval["high"]
