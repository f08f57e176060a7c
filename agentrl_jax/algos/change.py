"""Detects whether a series has fallen, with statistical tests that separate a fall from noise.

At every value, the windows that end there, `shortest` to `longest` values long, are compared with a reference before
them. A window counts as fallen if it is low enough to matter and two tests reject chance:

1. Student's t test of the values. It assumes that the values of an unchanged run are independent, whatever their
   variance (single episodes are not: the episodes of a group share their level).
2. An exact test, which is valid where successes are too few for a t test: the binomial test of two counts of successes
   (Przyborowski and Wilenski 1940), or, without counts, Fisher's exact test of how many values are low.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int
from scipy import stats

FALSE_ALARMS = 3e-5
"""Largest p-value that both tests accept as a fall. A run is tested at every iteration over several windows, so this is
far below the share of unchanged runs that raise an alarm; benchmarks/collapse_alarms.py measures that share."""


@dataclasses.dataclass(frozen=True)
class Falls:
    """The most significant fall found at each of n values."""

    begins: Int[np.ndarray, " n"]
    """Index of the first value of the fallen window; -1 where there is none."""
    means: Float[np.ndarray, " n"]
    """Mean of that window; NaN where there is none."""
    references: Float[np.ndarray, " n"]
    """Mean of the reference that it was compared with; NaN where there is none."""


def falls(
    values: np.ndarray,
    *,
    bound: float,
    share: float,
    start: int | None,
    shortest: int,
    longest: int,
    counts: np.ndarray | None = None,
    independent: bool = False,
) -> Falls:
    """Finds the windows of a series of non-negative values that have fallen.

    Args:
        values: the series, of n values.
        bound: the mean of a window must be below this; values below it count as low in Fisher's test.
        share: the mean of a window must also be below this share of the reference's mean.
        start: the reference is the first `start` values; None: all values before the window.
        shortest: number of values in the shortest window.
        longest: number of values in the longest window.
        counts: number of episodes behind each value, if values are shares of episodes; None otherwise.
        independent: these episodes are independent, so the binomial test alone decides.
    """
    n = len(values)
    if not n:
        return Falls(np.zeros(0, int), np.zeros(0), np.zeros(0))
    ends = np.arange(n)[:, None]
    lengths = np.arange(shortest, longest + 1)[None, :]
    firsts = ends - lengths + 1  # [n, lengths] index of the first value of each window
    known = firsts >= (1 if start is None else start)
    firsts = np.where(known, firsts, 0)
    until = firsts if start is None else np.full_like(firsts, min(start, n))

    def sums(series: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums over the reference and over the window."""
        total = np.concatenate([[0.0], np.cumsum(series)])
        return total[until], total[ends + 1] - total[firsts]

    sizes = np.maximum(until, 1), np.broadcast_to(lengths, firsts.shape)
    means = tuple(total / size for total, size in zip(sums(values), sizes))
    low = known & (means[1] < bound) & (means[1] < share * means[0])
    squares = sums((values - values.mean()) ** 2)
    shifts = [size * (mean - values.mean()) ** 2 for size, mean in zip(sizes, means)]
    df = np.maximum(sizes[0] + sizes[1] - 2, 1)
    variance = np.maximum(squares[0] - shifts[0] + squares[1] - shifts[1], 0.0) / df
    # A reference that is high by chance varies more than what follows: use its variance where that is larger.
    of_reference = np.maximum(squares[0] - shifts[0], 0.0) / np.maximum(sizes[0] - 1, 1)
    if counts is not None:
        episodes = sums(counts)
        solved = sums(values * counts)
        total = np.maximum(episodes[0] + episodes[1], 1.0)
        rate = np.clip((solved[0] + solved[1]) / total, 0.0, 1.0)
        # Lower bound: the variance of a share of independent episodes, even if the observed values are all alike.
        variance = np.maximum(variance, rate * (1 - rate) * (sizes[0] + sizes[1]) / total)
    errors = np.sqrt(np.maximum(variance, of_reference) / sizes[0] + variance / sizes[1]) + 1e-12
    t = np.where(low, (means[0] - means[1]) / errors, 0.0)
    significant = low & (independent | (t > stats.t.isf(FALSE_ALARMS, np.arange(1, df.max() + 1))[df - 1]))
    if significant.any():
        if counts is not None:
            seen = np.round(solved[0])[significant]
            p = stats.binom.sf(seen - 1, seen + np.round(solved[1])[significant], (episodes[0] / total)[significant])
        else:
            good = sums((values >= bound).astype(float))
            number, high = sizes[0] + sizes[1], good[0] + good[1]
            p = stats.hypergeom.sf(*(x[significant] for x in (good[0] - 1, number, high, sizes[0])))
        significant[significant] = p <= FALSE_ALARMS
    best = np.argmax(np.where(significant, t, -1.0), axis=1)
    rows, any_fall = np.arange(n), significant.any(axis=1)

    def chosen(array: np.ndarray) -> np.ndarray:
        return np.where(any_fall, array[rows, best], np.nan)

    return Falls(np.where(any_fall, firsts[rows, best], -1), chosen(means[1]), chosen(means[0]))
