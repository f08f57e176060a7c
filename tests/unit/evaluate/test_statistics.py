import itertools
import math

import numpy as np
import pytest
from scipy import stats

from agentrl_jax.errors import BadValue
from agentrl_jax.evaluate.interval_text import cells, number, points, rate
from agentrl_jax.evaluate.statistics import (
    MOST_SEEDS,
    best_of,
    cost_until_success,
    crossed_interval,
    crossed_success_interval,
    majority_of,
    mean_interval,
    paired_interval,
    pass_all,
    pass_at,
    seeds_needed,
    success_interval,
)

Z = stats.norm.ppf(0.975)


def bounds(interval):
    return interval["low"], interval["high"]


def assert_wilson(interval, successes, n):
    """The bounds are rates that the score test just does not reject."""
    rate, (low, high) = successes / n, bounds(interval)
    assert low <= rate <= high
    assert high > low
    for bound in (low, high):
        assert (rate - bound) ** 2 == pytest.approx(Z**2 * bound * (1 - bound) / n, abs=1e-12)


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 20), (20, 20), (3, 7), (97, 512), (256, 512)])
def test_interval_of_a_rate_is_the_inverted_score_test(successes, n):
    outcome = np.arange(n) < successes
    result = success_interval(outcome)
    assert (result["mean"], result["n"]) == (successes / n, n)
    assert_wilson(result, successes, n)
    assert success_interval(outcome.astype(float)) == result


def test_interval_of_other_outcomes_is_students():
    x = np.random.default_rng(0).normal(size=30)
    expected = stats.t.interval(0.9, 29, loc=x.mean(), scale=stats.sem(x))
    np.testing.assert_allclose(bounds(mean_interval(x, level=0.9)), expected)
    assert mean_interval([0.3]) == {"mean": 0.3, "low": 0.3, "high": 0.3, "n": 1}
    counts = np.arange(20) < 5
    expected = stats.t.interval(0.95, 19, loc=0.25, scale=stats.sem(counts))
    np.testing.assert_allclose(bounds(mean_interval(counts)), expected)
    assert mean_interval(np.zeros(20)) == {"mean": 0.0, "low": 0.0, "high": 0.0, "n": 20}


def pairs(both, only_a, only_b, neither):
    a = [1] * both + [1] * only_a + [0] * only_b + [0] * neither
    b = [1] * both + [0] * only_a + [1] * only_b + [0] * neither
    return a, b


def test_an_interval_of_probabilities_stays_among_them_and_a_single_one_is_shown_without_bounds():
    assert success_interval([0.99, 0.2])["high"] == 1.0
    assert success_interval([0.01, 0.9])["low"] == 0.0
    inside = [0.5, 0.45, 0.55, 0.5]
    assert success_interval(inside) == mean_interval(inside)
    single = success_interval([0.689])
    assert (rate(single), points(single), number(single)) == ("68.9%", "+68.9", "0.7")
    assert cells(single) == {"mean": "68.9%", "low": "-", "high": "-"}
    assert rate(success_interval([1])) == "100.0% [20.7, 100.0]"


def test_paired_intervals():
    """Of rates: an example of Newcombe's, one without correlation, the signs of the sides, and the bounds."""
    np.testing.assert_allclose(bounds(paired_interval(*pairs(36, 12, 2, 0))), (0.0569, 0.3404), atol=5e-5)
    # By hand, with a correlation of (280 - 25) / 611.9: 25 is the correction of one that is positive.
    np.testing.assert_allclose(bounds(paired_interval(*pairs(20, 10, 4, 16))), (-0.02749, 0.25839), atol=5e-6)
    low, high = bounds(success_interval([1] * 20 + [0] * 30))
    width = math.hypot(0.4 - low, high - 0.4)
    np.testing.assert_allclose(bounds(paired_interval(*pairs(8, 12, 12, 18))), (-width, width), rtol=1e-9)
    for counts in list(itertools.product((0, 1, 5), repeat=4))[1:]:
        a, b = pairs(*counts)
        result, turned = paired_interval(a, b), paired_interval(b, a)
        assert -1 <= result["low"] <= result["mean"] <= result["high"] <= 1
        assert result["high"] > result["low"]
        np.testing.assert_allclose(bounds(turned), (-result["high"], -result["low"]), atol=1e-12)
    a, b = np.random.default_rng(2).normal(size=(2, 40))
    expected = stats.t.interval(0.95, 39, loc=(a - b).mean(), scale=stats.sem(a - b))
    np.testing.assert_allclose(bounds(paired_interval(a, b)), expected)


def test_wrong_arguments_are_refused():
    for call, key, value in (
        (lambda: mean_interval([]), "x", (0,)),
        (lambda: mean_interval(np.zeros((2, 2))), "x", (2, 2)),
        (lambda: mean_interval([0.0, np.inf]), "x", np.inf),
        (lambda: mean_interval([0.0, 1.0], clusters=["a", "a"]), "x", 2),
        (lambda: mean_interval([0.0, 1.0, 1.0], clusters=["a", "b"]), "x", 3),
        (lambda: paired_interval([1], [1, 0]), "a", 1),
        (lambda: crossed_interval([1.0, 2.0]), "x", (2,)),
        (lambda: crossed_interval([[]]), "x", (1, 0)),
        (lambda: crossed_interval([[np.nan, 1.0]]), "x", (1, 2)),
        (lambda: pass_at([[True]], 2), "x", (1, 1)),
        (lambda: pass_at([[True]], 0), "x", (1, 1)),
        (lambda: pass_at([[1.0]], 1), "x", (1, 1)),
        (lambda: pass_at([], 1), "x", (0,)),
        (lambda: cost_until_success([[True, False]], [[1]], 1), "cost", (1, 1)),
        (lambda: cost_until_success([[True]], [[np.nan]], 1), "cost", (1, 1)),
        (lambda: best_of([[True, False]], np.zeros((1, 1)), 1), "score", (1, 1)),
        (lambda: best_of([[True]], [[np.nan]], 1), "score", (1, 1)),
        (lambda: majority_of([[True], [True]], [["a"], []], 1), "answers", 2),
    ):
        with pytest.raises(BadValue) as refused:
            call()
        assert (refused.value.key, refused.value.value) == (key, value)


def test_crossed_interval_is_students_of_what_varies():
    seeds, levels = np.array([0.1, 0.3, 0.8]), np.linspace(0, 1, 8)
    of_seeds = np.ptp(stats.t.interval(0.95, 2, scale=stats.sem(seeds))) / 2
    of_levels = np.ptp(stats.t.interval(0.95, 7, scale=stats.sem(levels))) / 2
    for x, mean, half in (
        (np.repeat(seeds[:, None], 8, axis=1), 0.4, of_seeds),
        (seeds[:, None], 0.4, of_seeds),
        (np.repeat(levels[None], 3, axis=0), 0.5, of_levels),
        (seeds[:, None] + levels, 0.9, math.hypot(of_seeds, of_levels)),
    ):
        found = crossed_interval(x)
        assert (found["mean"], found["n"]) == (pytest.approx(mean), len(x))
        np.testing.assert_allclose(bounds(found), (mean - half, mean + half))
    # The slope of log odds at 0.4 is 1 / 0.24.
    rate = crossed_success_interval(seeds[:, None])
    odds = math.log(0.4 / 0.6) + np.array([-1, 1]) * of_seeds / 0.24
    np.testing.assert_allclose(bounds(rate), 1 / (1 + np.exp(-odds)))
    assert crossed_success_interval(np.ones((3, 7))) == {"mean": 1.0, "low": 1.0, "high": 1.0, "n": 3}


@pytest.mark.parametrize("k", [1, 2, 4])
def test_samples_are_summed_over_all_their_orders(k):
    draw = np.random.default_rng(0)
    outcomes, costs = draw.random((8, 4)) < np.linspace(0, 0.8, 8)[:, None], draw.integers(1, 100, (8, 4))
    some, every, totals = [], [], []
    for order in itertools.permutations(range(4)):
        chosen = outcomes[:, order]
        some.append(chosen[:, :k].any(axis=1))
        every.append(chosen[:, :k].all(axis=1))
        unsolved = np.cumsum(chosen, axis=1) - chosen == 0
        totals.append(np.sum((costs[:, order] * unsolved)[:, :k], axis=1))
    np.testing.assert_allclose(pass_at(outcomes, k), np.mean(some, axis=0))
    np.testing.assert_allclose(pass_all(outcomes, k), np.mean(every, axis=0))
    np.testing.assert_allclose(cost_until_success(outcomes, costs, k), np.mean(totals, axis=0))
    outcomes = np.arange(4000)[None] < 3  # many samples do not overflow
    assert pass_at(outcomes, 2000)[0] == pytest.approx(1 - 2000 / 4000 * 1999 / 3999 * 1998 / 3998)
    assert pass_all(outcomes, 4) == 0


def test_equal_outcomes_in_a_cluster_count_once():
    x, names = np.random.default_rng(0).random(12), list("abcdefghijkl")
    assert mean_interval(x, clusters=names) == pytest.approx(mean_interval(x) | {"clusters": 12})
    copied = mean_interval(np.repeat(x, 5), clusters=np.repeat(names, 5).tolist())
    assert copied == pytest.approx(mean_interval(x, clusters=names) | {"n": 60})
    # Clusters without a failure keep an interval.
    names = ["a", "a", "b", "b", "c", "c"]
    for value in (0.0, 1.0):
        assert success_interval([value] * 6, clusters=names) == success_interval([value] * 3) | {"n": 6, "clusters": 3}
    balanced = success_interval([0, 1, 1, 0, 0, 1], clusters=names)
    assert balanced["mean"] == 0.5
    assert_wilson(balanced, 1.5, 3)


def test_clustered_differences():
    names, zeros, ones = [f"c{i % 6}" for i in range(90)], np.zeros(90), np.ones(90)
    width = success_interval(np.zeros(6))["high"]
    for a, b, low, high in (
        (zeros, zeros, -width, width),
        (ones, zeros, 1 - width, 1.0),
        (zeros, ones, -1.0, width - 1),
        (np.full(90, 0.7), np.full(90, 0.6), 0.1 - width, 0.1 + width),
    ):
        found = paired_interval(a, b, clusters=names)
        np.testing.assert_allclose(bounds(found), (low, high), atol=1e-9)
        assert (found["n"], found["clusters"]) == (90, 6)
    # Otherwise they are those of a sample of the clusters' means.
    draw = np.random.default_rng(3)
    a, b = draw.random((5, 4)), draw.random((5, 4))
    found = paired_interval(a.ravel(), b.ravel(), clusters=np.repeat(list("abcde"), 4).tolist())
    means = (a - b).mean(axis=1)
    expected = stats.t.interval(0.95, 4, loc=means.mean(), scale=stats.sem(means))
    np.testing.assert_allclose(bounds(found), expected)


def test_clusters_of_different_sizes_have_the_error_of_the_jackknife():
    x, sizes = np.random.default_rng(5).normal(size=60), np.array([6, 24, 30])
    number = np.repeat(np.arange(3), sizes)
    found = mean_interval(x, clusters=number.astype(str))
    left = np.array([x[number != cluster].mean() for cluster in range(3)])
    error = math.sqrt(2 / 3 * np.sum((left - x.mean()) ** 2))
    degrees = 1.3272  # of a scaled chi-square with the relative variance of these squares, as simulation confirms
    assert (found["high"] - found["mean"]) / error == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-4)


@pytest.mark.parametrize(("differences", "least", "most"), [([0.1, 0.0, 0.05], 10, 12), ([0.09, 0.11, 0.1], 3, 3)])
def test_so_many_seeds_tell_a_difference(differences, least, most):
    number = seeds_needed(differences)
    assert least <= number <= most

    def told(seeds):
        draws = np.random.default_rng(0).normal(np.mean(differences), np.std(differences, ddof=1), (20_000, seeds))
        return np.mean(stats.ttest_1samp(draws, 0.0, axis=1).statistic > stats.t.ppf(0.975, seeds - 1))

    assert told(number) >= 0.79
    assert number == 2 or told(number - 1) < 0.81


def test_a_difference_that_nothing_tells_needs_as_many_as_there_are():
    assert seeds_needed([0.1, -0.1, 1e-6]) == MOST_SEEDS
    assert [seeds_needed(x) for x in ([0.1], [0.1, 0.1], [0.1, -0.1])] == [None] * 3
