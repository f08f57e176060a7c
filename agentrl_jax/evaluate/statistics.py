"""Confidence intervals for success rates and for differences between two agents on the same levels."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from agentrl_jax.errors import BadValue

MOST_SEEDS = 1000
_POWER = 0.8
Clusters = Sequence[str] | None
"""The cluster of each outcome, for example the template that an item was made from; None for independent outcomes."""


def success_interval(x: ArrayLike, *, level: float = 0.95, clusters: Clusters = None) -> dict[str, float | int]:
    """The mean of outcomes (0 or 1) or exact probabilities, one per level, with a confidence interval inside [0, 1].

    Outcomes that are all 0 or 1 get Wilson's score interval (Wilson 1927), which has positive width even at 0 and at n
    successes. Others get `mean_interval`, cut to [0, 1]. So do all with `clusters`, except where all clusters have the
    same mean: there is no variance to estimate, and they get Wilson's interval of as many outcomes as clusters.

    Raises:
        ValueError: as in `mean_interval`.
    """
    interval = mean_interval(x, level=level, clusters=clusters)
    if clusters is None:
        by_wilson, count = _is_binary(np.asarray(x, np.float64)), interval["n"]
    else:
        by_wilson, count = interval["low"] == interval["high"], interval["clusters"]
    if by_wilson:
        low, high = _wilson(interval["mean"], int(count), _quantile(level))
        return interval | {"low": low, "high": high}
    return interval | {"low": max(interval["low"], 0.0), "high": min(interval["high"], 1.0)}


def mean_interval(x: ArrayLike, *, level: float = 0.95, clusters: Clusters = None) -> dict[str, float | int]:
    """The mean of returns, costs or counts `x` [n], one per level, with Student's t interval: mean, low, high and `n`.

    It assumes no bounds, also where all values are 0 or 1 by chance; outcomes have `success_interval`. A single value,
    and values that are all equal, get low = high = mean.

    Values of one of the C `clusters` may depend on each other. Then the standard error is the jackknife's of clusters,
    (C - 1) / C * sum over clusters of (change of the mean without the cluster)^2 under the root, and the degrees of
    freedom are those of Bell and McCaffrey (Survey Methodology 28:169, 2002) for independent values: C - 1 where all
    clusters are equally large, and fewer otherwise. low = high = mean where all clusters have the same mean. The result
    also has C as `clusters`.

    Raises:
        ValueError: there is no value, one is not finite, there are fewer than two clusters, or not as many as values.
    """
    values = _outcomes(x, "x")
    n, mean = len(values), float(values.mean())
    if clusters is None:
        half, counted = _t_half_width(values, level), {}
    else:
        half, count = _cluster_half_width(values, clusters, level)
        counted = {"clusters": count}
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": n} | counted


def paired_interval(
    a: ArrayLike, b: ArrayLike, *, level: float = 0.95, clusters: Clusters = None
) -> dict[str, float | int]:
    """The mean of a - b, outcomes of two agents on the same levels, with a confidence interval as `mean_interval`.

    Outcomes that are all 0 or 1 get Newcombe's hybrid score interval for paired proportions (Newcombe, Statistics in
    Medicine 17:2635, 1998, method 10), which keeps its confidence level for small differences and never leaves [-1, 1].
    Others get Student's t interval of the differences.

    With `clusters`, `a` and `b` are outcomes or probabilities, and the interval is the clustered one of
    `mean_interval`, cut to [-1, 1]. Where the mean difference is the same in all clusters, there is no variance to
    estimate: the half width is Wilson's bound for the share of clusters that differ, if none of them does.

    Raises:
        ValueError: the lengths differ, there is no outcome, or one is not finite; as in `mean_interval` with clusters.
    """
    first, second = _outcomes(a, "a"), _outcomes(b, "b")
    if len(first) != len(second):
        raise BadValue(
            f"a has {len(first)} outcomes and b {len(second)}; a paired interval needs the same levels",
            key="a",
            value=len(first),
        )
    if clusters is not None:
        return _clustered_difference(first - second, clusters, level)
    if not (_is_binary(first) and _is_binary(second)):
        return mean_interval(first - second, level=level)
    low, high = _newcombe(first.astype(bool), second.astype(bool), _quantile(level))
    return {"mean": float(first.mean() - second.mean()), "low": low, "high": high, "n": len(first)}


def pass_at(x: ArrayLike, k: int) -> np.ndarray:
    """The probability that at least one of k samples of an item succeeds, f64[n]: 1 - C(m - c, k) / C(m, k).

    `x` bool[n, m] are the outcomes of n items in m samples, and c is an item's number of successes; without bias for
    k <= m (Chen et al. 2021, arXiv 2107.03374). Raises a `ValueError` for another shape or k.
    """
    outcomes = _samples(x, k)
    return 1.0 - _all_of((~outcomes).sum(axis=1), outcomes.shape[1], k)


def pass_all(x: ArrayLike, k: int) -> np.ndarray:
    """The probability that k samples of an item all succeed, f64[n]: C(c, k) / C(m, k) (Yao et al. 2024, tau-bench).

    Arguments as in `pass_at`.
    """
    outcomes = _samples(x, k)
    return _all_of(outcomes.sum(axis=1), outcomes.shape[1], k)


def any_of(success: ArrayLike, k: int) -> np.ndarray:
    """The probability that at least one of k independent plays of an item succeeds, f64[n]; `success` [n] is of one."""
    return 1.0 - (1.0 - np.asarray(success, np.float64)) ** k


def cost_until_success(x: ArrayLike, cost: ArrayLike, k: int) -> np.ndarray:
    """The expected cost of up to k samples of an item, of which none follows a success, f64[n].

    `x` as in `pass_at`, and `cost` [n, m] is that of each sample. The k samples are drawn without replacement from the
    m: a sample is paid for at place i (from 1) with probability C(f, i - 1) / C(m - 1, i - 1) / m, where f is the
    number of failures among the others. Raises a `ValueError` for other arguments.
    """
    outcomes, costs = _samples(x, k), np.asarray(cost, np.float64)
    if costs.shape != outcomes.shape or not np.isfinite(costs).all():
        raise BadValue(
            f"cost has shape {costs.shape}, expected finite costs {list(outcomes.shape)}", key="cost", value=costs.shape
        )
    m = outcomes.shape[1]
    failures = (~outcomes).sum(axis=1, keepdims=True) - ~outcomes  # among the other samples
    paid = [_all_of(failures.ravel(), m - 1, place).reshape(failures.shape) for place in range(k)]
    return np.sum(np.sum(paid, axis=0) * costs, axis=1) / m


def best_of(x: ArrayLike, score: ArrayLike, k: int) -> np.ndarray:
    """The probability that of k samples of an item the one with the highest score succeeds, f64[n].

    `x` as in `pass_at`, and `score` f64[n, m] are finite. The k samples are drawn without replacement from the m, and
    equal scores are chosen from at random: the sample of rank r (from 1) is chosen with probability
    C(m - r, k - 1) / C(m, k), and samples of equal score share the ranks. Raises a `ValueError` for other arguments.
    """
    outcomes, scores = _samples(x, k), np.asarray(score, np.float64)
    if scores.shape != outcomes.shape or not np.isfinite(scores).all():
        raise BadValue(
            f"score has shape {scores.shape}, expected finite scores {list(outcomes.shape)}",
            key="score",
            value=scores.shape,
        )
    m = outcomes.shape[1]
    chosen = np.array([math.comb(m - rank, k - 1) / math.comb(m, k) for rank in range(1, m + 1)])
    expected = np.zeros(len(outcomes))
    for item, (solved, of_item) in enumerate(zip(outcomes, scores)):
        values, group = np.unique(-of_item, return_inverse=True)
        share = np.bincount(group, weights=solved) / np.bincount(group)
        expected[item] = np.sum(chosen * np.repeat(share, np.bincount(group, minlength=len(values))))
    return expected


def majority_of(x: ArrayLike, answers: Sequence[Sequence[str]], k: int) -> np.ndarray:
    """The success of the answer that most of k samples give, f64[n]: the mean over the m // k blocks of k samples.

    `x` as in `pass_at`, and `answers` [n][m] is the answer of each, empty for none, which is not counted; of equally
    frequent answers the first counts. Raises a `ValueError` for other arguments.
    """
    outcomes = _samples(x, k)
    n, m = outcomes.shape
    if [len(row) for row in answers] != [m] * n:
        raise BadValue(
            f"answers are not those of {n} items with {m} samples each; expected one of each sample",
            key="answers",
            value=n,
        )

    def solved(item: int, block: int) -> bool:
        given = list(answers[item][block : block + k])
        votes = Counter(answer for answer in given if answer).most_common(1)
        return bool(votes and outcomes[item, block + given.index(votes[0][0])])

    return np.array([np.mean([solved(item, block) for block in range(0, m - k + 1, k)]) for item in range(n)])


def _all_of(count: np.ndarray, samples: int, k: int) -> np.ndarray:
    """The probability that k of the samples, drawn without replacement, are all among `count` of them."""
    factors = (count[:, None] - np.arange(k)) / (samples - np.arange(k))
    return np.prod(np.clip(factors, 0.0, None), axis=1)


def _samples(x: ArrayLike, k: int) -> np.ndarray:
    outcomes = np.asarray(x)
    if outcomes.ndim != 2 or outcomes.dtype != bool or not outcomes.size or not 1 <= k <= outcomes.shape[1]:
        raise BadValue(
            f"x has shape {outcomes.shape} and type {outcomes.dtype}, and k is {k}; expected bool [items, samples], at "
            "least one item and k samples",
            key="x",
            value=outcomes.shape,
        )
    return outcomes


def crossed_interval(x: ArrayLike, *, level: float = 0.95) -> dict[str, float | int]:
    """The mean over seeds and levels, both taken as samples, with a confidence interval; `n` is the number of seeds S.

    `x` [S, n] are paired differences of two agents, or other values. Student's t intervals over the S means of the
    seeds and over the n means of the levels are taken together: the squares of their half widths add up. The noise of
    single outcomes is in both, so that the interval is conservative also with few seeds; tests simulate its coverage.

    Raises:
        ValueError: x is not [S, n], or not finite.
    """
    values = np.asarray(x, np.float64)
    if values.ndim != 2 or not values.size or not np.isfinite(values).all():
        raise BadValue(
            f"x has shape {values.shape}, expected finite outcomes [seeds, levels], at least one",
            key="x",
            value=values.shape,
        )
    half = math.hypot(*(_t_half_width(values.mean(axis=axis), level) for axis in (0, 1)))
    mean = float(values.mean())
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": len(values)}


def crossed_success_interval(x: ArrayLike, *, level: float = 0.95) -> dict[str, float | int]:
    """As `crossed_interval`, of outcomes (0 or 1) or success rates `x` [S, n]: on the scale of log odds.

    There the interval stays inside (0, 1), and covers also where a few seeds differ much and rates are near 0 or 1.
    With values that are all equal it has no width.
    """
    interval = crossed_interval(x, level=level)
    mean, half = interval["mean"], interval["high"] - interval["mean"]
    if not half:
        return interval
    from scipy import special  # slow

    low, high = special.expit(special.logit(mean) + np.array([-1.0, 1.0]) * half / (mean * (1 - mean)))
    return interval | {"low": float(low), "high": float(high)}


def _outcomes(x: ArrayLike, name: str) -> np.ndarray:
    outcomes = np.asarray(x, dtype=np.float64)
    if outcomes.ndim != 1 or outcomes.size == 0:
        raise BadValue(
            f"{name} has shape {outcomes.shape}, expected [n] with at least one outcome", key=name, value=outcomes.shape
        )
    if not np.isfinite(outcomes).all():
        raise BadValue(
            f"{name} holds {outcomes[~np.isfinite(outcomes)][0]}, expected finite outcomes",
            key=name,
            value=outcomes[~np.isfinite(outcomes)][0],
        )
    return outcomes


def _is_binary(outcomes: np.ndarray) -> bool:
    return bool(np.isin(outcomes, (0.0, 1.0)).all())


def _quantile(level: float) -> float:
    from scipy import special

    return float(special.ndtri(0.5 + level / 2))  # what `scipy.stats.norm.ppf` calls, which takes a second to import


def _t_quantile(level: float, degrees: float) -> float:
    from scipy import special

    return float(special.stdtrit(degrees, 0.5 + level / 2))  # what `stats.t.ppf` calls, 50 times as fast


def _t_half_width(x: np.ndarray, level: float) -> float:
    if len(x) < 2:
        return 0.0
    return float(_t_quantile(level, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)))


def _cluster_half_width(x: np.ndarray, clusters: Sequence[str], level: float) -> tuple[float, int]:
    """Half the width of the interval of `mean_interval`, and the number of clusters."""
    names, number = np.unique(np.asarray(clusters, str), return_inverse=True)
    count = len(names)
    if len(number) != len(x) or count < 2:
        raise BadValue(
            f"x has {len(x)} outcomes, and clusters has {len(number)} of {count} kinds; expected the cluster of each "
            "outcome, and at least two clusters",
            key="x",
            value=len(x),
        )
    sums = np.bincount(number, weights=x - x.mean())
    if np.allclose(sums, 0.0, atol=1e-9 * max(1.0, float(np.abs(x).sum()))):  # but for rounding
        return 0.0, count
    sizes = np.bincount(number)
    share = sizes / (len(x) - sizes)
    error = np.sqrt((count - 1) / count * np.sum((share * sums / sizes) ** 2))
    # The changes of the mean as a matrix of the clusters' means, which vary by 1 / size.
    changes = share[:, None] * (np.eye(count) - sizes / len(x)) / np.sqrt(sizes)
    spread = changes.T @ changes
    degrees = np.trace(spread) ** 2 / np.sum(spread**2)
    return float(_t_quantile(level, degrees) * error), count


def _clustered_difference(x: np.ndarray, clusters: Sequence[str], level: float) -> dict[str, float | int]:
    """`paired_interval` of clustered differences."""
    interval = mean_interval(x, level=level, clusters=clusters)
    mean, low, high = interval["mean"], interval["low"], interval["high"]
    if low == high:
        _, half = _wilson(0.0, int(interval["clusters"]), _quantile(level))
        low, high = mean - half, mean + half
    return interval | {"low": max(low, -1.0), "high": min(high, 1.0)}


def _wilson(mean: float, n: int, z: float) -> tuple[float, float]:
    center = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return float(min(max(center - half, 0.0), mean)), float(max(min(center + half, 1.0), mean))


def _newcombe(a: np.ndarray, b: np.ndarray, z: float) -> tuple[float, float]:
    n = len(a)
    both, neither = int((a & b).sum()), int((~a & ~b).sum())
    only_a, only_b = int((a & ~b).sum()), int((~a & b).sum())
    p, q = (both + only_a) / n, (both + only_b) / n
    p_low, p_high = _wilson(p, n, z)
    q_low, q_high = _wilson(q, n, z)

    # Correlation of the pair, with a continuity correction if it is positive.
    product = float(both * neither - only_a * only_b)
    if product > 0:
        product = max(product - n / 2, 0.0)
    margins = (both + only_a) * (only_b + neither) * (both + only_b) * (only_a + neither)
    phi = product / np.sqrt(margins) if margins else 0.0

    def width(x: float, y: float) -> float:
        return float(np.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0)))

    difference = (only_a - only_b) / n
    return difference - width(p - p_low, q_high - q), difference + width(p_high - p, q - q_low)


def seeds_needed(differences: ArrayLike) -> int | None:
    """Smallest number of seeds with which a paired t test would tell a mean as large as that of S differences from 0.

    At 5 % (two-sided), in 80 % of the cases, if the seeds spread as these do; `MOST_SEEDS` stands for at least so many.
    None for fewer than two seeds, or where the mean is 0 or nothing varies.
    """
    found = np.asarray(differences, np.float64)
    if len(found) < 2 or not (spread := np.std(found, ddof=1)) or not (mean := np.mean(found)):
        return None
    from scipy import special

    number = np.arange(2, MOST_SEEDS + 1)
    bound = special.stdtrit(number - 1, 0.975)
    enough = special.nctdtr(number - 1, np.sqrt(number) * abs(mean) / spread, bound) <= 1 - _POWER
    return int(number[np.argmax(enough)]) if enough.any() else MOST_SEEDS
