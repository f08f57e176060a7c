"""Intervals of `statistics` as text for tables.

The bounds of a single value that is no outcome, such as an exact probability, are the value itself, because nothing is
known of its spread. They are not shown.
"""

from collections.abc import Mapping

Interval = Mapping[str, float | int]


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
