"""Intervals of `statistics` as text for tables."""

from collections.abc import Mapping

Interval = Mapping[str, float | int]


def rate(interval: Interval) -> str:
    """A share in percent, with its bounds."""
    return f"{interval['mean']:.1%} [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"


def points(interval: Interval) -> str:
    """A difference of shares in points, with its bounds."""
    mean, low, high = (100 * interval[bound] for bound in ("mean", "low", "high"))
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def number(interval: Interval) -> str:
    """A number with its bounds."""
    return f"{interval['mean']:.1f} [{interval['low']:.1f}, {interval['high']:.1f}]"
