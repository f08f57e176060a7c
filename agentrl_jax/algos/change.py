"""Detects whether a series has fallen, with statistical tests that separate a fall from noise.

At every value, the windows that end there, `shortest` to `longest` values long, are compared with a reference before
them. A window counts as fallen if it is low enough to matter and two tests reject chance:

1. Student's t test of the values. It assumes that the values of an unchanged run are independent, whatever their
   variance (single episodes are not: the episodes of a group share their level).
2. An exact test, which is valid where successes are too few for a t test: the binomial test of two counts of successes
   (Przyborowski and Wilenski 1940), or, without counts, Fisher's exact test of how many values are low.
"""

import collections
import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

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


@dataclasses.dataclass(frozen=True)
class FallRule:
    """What counts as a fall of a series of non-negative values.

    Attributes:
        bound: the mean of a window must be below this; values below it count as low in Fisher's test.
        share: the mean of a window must also be below this share of the reference's mean.
        start: the reference is the first `start` values; None: all values before the window.
        shortest: number of values in the shortest window.
        longest: number of values in the longest window.
        independent: the episodes behind a value are independent, so the binomial test alone decides.
    """

    bound: float
    share: float
    start: int | None
    shortest: int
    longest: int
    independent: bool = False

    def addends(self, values: np.ndarray, center: float, counts: np.ndarray) -> Float[np.ndarray, "n 5"]:
        """What is summed up of each value: itself, its squared distance from `center`, the episodes behind it, how many
        of them succeeded, and 1 if it is not low."""
        return np.stack([values, (values - center) ** 2, counts, values * counts, values >= self.bound], axis=-1)


def falls(rule: FallRule, values: np.ndarray, counts: np.ndarray | None = None) -> Falls:
    """Finds the windows of a series, of n values, that have fallen.

    `counts` is the number of episodes behind each value, if values are shares of episodes; None otherwise.
    """
    n = len(values)
    if not n:
        return Falls(np.zeros(0, int), np.zeros(0), np.zeros(0))
    center = float(values.mean())
    added = rule.addends(values, center, np.zeros(n) if counts is None else counts)
    total = np.concatenate([np.zeros((1, added.shape[1])), np.cumsum(added, axis=0)])
    return _tested(rule, np.arange(n), lambda index: total[index], center, counted=counts is not None)


class NewestFall:
    """Tests the newest value of a series that grows; a value costs the same however long the series is."""

    def __init__(self, rule: FallRule):
        """Starts without a value."""
        self.rule, self._n, self._counted, self._center = rule, 0, True, 0.0
        # Sums over all values before each of the newest ones, and before the end of the reference.
        self._sums = collections.deque([np.zeros(5)], maxlen=rule.longest + 1)
        self._reference = np.zeros(5)

    def add(self, value: float, count: float | None) -> Falls:
        """Returns what `falls` finds at the value that is added, up to rounding."""
        self._center = self._center if self._n else value
        self._counted &= count is not None
        added = self.rule.addends(np.asarray([value]), self._center, np.asarray([count or 0.0]))
        self._sums.append(self._sums[-1] + added[0])
        self._n += 1
        if self._n == self.rule.start:
            self._reference = self._sums[-1]
        oldest, sums = self._n + 1 - len(self._sums), np.stack(self._sums)

        def before(index: np.ndarray) -> np.ndarray:
            return np.where((index >= oldest)[..., None], sums[np.maximum(index - oldest, 0)], self._reference)

        return _tested(self.rule, np.asarray([self._n - 1]), before, self._center, counted=self._counted)


def _tested(
    rule: FallRule,
    ends: Int[np.ndarray, " n"],
    before: Callable[[Int[np.ndarray, "..."]], Float[np.ndarray, "... 5"]],
    center: float,
    *,
    counted: bool,
) -> Falls:
    """The falls of the windows that end at `ends`; `before` gives the sums of `addends` over the values before."""
    lengths = np.arange(rule.shortest, rule.longest + 1)[None, :]
    firsts = ends[:, None] - lengths + 1  # [n, lengths] index of the first value of each window
    known = firsts >= (1 if rule.start is None else rule.start)
    firsts = np.where(known, firsts, ends[:, None])
    until = firsts if rule.start is None else np.full_like(firsts, min(rule.start, int(ends[-1]) + 1))
    reference, window = before(until), before(ends[:, None] + 1) - before(firsts)
    sizes = np.maximum(until, 1), np.broadcast_to(lengths, firsts.shape)
    sums = tuple(zip(*(np.moveaxis(part, -1, 0) for part in (reference, window))))
    from scipy import stats  # takes a second

    means = tuple(total / size for total, size in zip(sums[0], sizes))
    low = known & (means[1] < rule.bound) & (means[1] < rule.share * means[0])
    squares, episodes, solved, good = sums[1:]
    shifts = [size * (mean - center) ** 2 for size, mean in zip(sizes, means)]
    df = np.maximum(sizes[0] + sizes[1] - 2, 1)
    variance = np.maximum(squares[0] - shifts[0] + squares[1] - shifts[1], 0.0) / df
    # A reference that is high by chance varies more than what follows: use its variance where that is larger.
    of_reference = np.maximum(squares[0] - shifts[0], 0.0) / np.maximum(sizes[0] - 1, 1)
    total = np.maximum(episodes[0] + episodes[1], 1.0)
    if counted:
        rate = np.clip((solved[0] + solved[1]) / total, 0.0, 1.0)
        # Lower bound: the variance of a share of independent episodes, even if the observed values are all alike.
        variance = np.maximum(variance, rate * (1 - rate) * (sizes[0] + sizes[1]) / total)
    errors = np.sqrt(np.maximum(variance, of_reference) / sizes[0] + variance / sizes[1]) + 1e-12
    t = np.where(low, (means[0] - means[1]) / errors, 0.0)
    each, at = np.unique(df, return_inverse=True)
    beyond = t > stats.t.isf(FALSE_ALARMS, each)[at].reshape(df.shape)
    significant = low & (beyond | (counted and rule.independent))
    if significant.any():
        if counted:
            seen = np.round(solved[0])[significant]
            p = stats.binom.sf(seen - 1, seen + np.round(solved[1])[significant], (episodes[0] / total)[significant])
        else:
            number, high = sizes[0] + sizes[1], good[0] + good[1]
            p = stats.hypergeom.sf(*(x[significant] for x in (good[0] - 1, number, high, sizes[0])))
        significant[significant] = p <= FALSE_ALARMS
    best = np.argmax(np.where(significant, t, -1.0), axis=1)
    rows, any_fall = np.arange(len(ends)), significant.any(axis=1)

    def chosen(array: np.ndarray) -> np.ndarray:
        return np.where(any_fall, array[rows, best], np.nan)

    return Falls(np.where(any_fall, firsts[rows, best], -1), chosen(means[1]), chosen(means[0]))
