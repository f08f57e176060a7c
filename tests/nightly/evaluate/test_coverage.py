"""Simulated coverage of every kind of 95 % interval that a report prints: at least 93 %.

Success is drawn from a model in which the log odds of seeds and of levels are normal, around 10 to 50 % (90 % is the
mirror image of 10 %); seeds have a standard deviation of up to 0.8, as between 31 and 69 % around 50 %. A few seeds of
which now and then one fails altogether are outside of it: no interval of three seeds knows of it.
"""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from scipy import special

from agentrl_jax.evaluate import statistics

LEAST = 0.93
COUNTS = (3, 5, 10)
TIMES = 2000
LEVELS = (1, 64, 256)
SUCCESS = (0.1, 0.3, 0.5)
OF_SEEDS, OF_LEVELS = (0.0, 0.3, 0.8), (0.0, 1.0, 3.0)
"""Standard deviations in log odds."""


class Case(NamedTuple):
    """Seeds and levels that differ in success; with `levels` 1, every seed has a success rate of 128 episodes."""

    seeds: int
    levels: int
    success: float
    of_seeds: float
    of_levels: float

    @property
    def truth(self):
        nodes, weights = np.polynomial.hermite_e.hermegauss(64)
        spread = np.hypot(self.of_seeds, self.of_levels) if self.levels > 1 else self.of_seeds
        return float(np.sum(weights * special.expit(special.logit(self.success) + spread * nodes)) / weights.sum())

    def draw(self, rng):
        odds = special.logit(self.success) + self.of_seeds * rng.normal(size=(self.seeds, 1))
        if self.levels == 1:
            return rng.binomial(128, special.expit(odds)) / 128
        odds = odds + self.of_levels * rng.normal(size=self.levels)
        return (rng.random(odds.shape) < special.expit(odds)).astype(np.float64)


def cases(seeds):
    for levels, success, of_seeds, of_levels in itertools.product(LEVELS, SUCCESS, OF_SEEDS, OF_LEVELS):
        if levels > 1 or not of_levels:
            yield Case(seeds, levels, success, of_seeds, of_levels)


def covered(draw, truth):
    """The share of intervals of `draw` that contain the truth."""
    rng = np.random.default_rng(0)
    found = (draw(rng) for _ in range(TIMES))
    return float(np.mean([interval["low"] <= truth <= interval["high"] for interval in found]))


def rate(outcomes):
    """As `comparison_report._rate`."""
    found = statistics.crossed_success_interval(outcomes)
    if found["low"] < found["high"]:
        return found
    seed = np.repeat(np.arange(len(outcomes)), outcomes.shape[1]).astype(str)
    return statistics.success_interval(outcomes.ravel(), clusters=seed)


@pytest.mark.parametrize("seeds", COUNTS)
def test_over_seeds_and_levels(seeds):
    """Of success, and of differences of two agents of equal success and of one that has half of it."""
    for case in cases(seeds):
        assert covered(lambda rng: rate(case.draw(rng)), case.truth) >= LEAST, case  # noqa: B023
        for other in (case, case._replace(success=case.success / 2)):
            truth = case.truth - other.truth
            share = covered(lambda rng: statistics.crossed_interval(case.draw(rng) - other.draw(rng)), truth)  # noqa: B023
            assert share >= LEAST, (case, other)


@pytest.mark.parametrize("clusters", COUNTS)
@pytest.mark.parametrize("kind", ["equal", "rising", "one large", "one tiny"])
@pytest.mark.parametrize("between", [0.0, 0.5, 2.0])
def test_of_clusters(clusters, kind, between):
    sizes = {
        "equal": [20] * clusters,
        "rising": [5 + 10 * i for i in range(clusters)],
        "one large": [10] * (clusters - 1) + [60],
        "one tiny": [1] + [20] * (clusters - 1),
    }[kind]
    names = np.repeat(np.arange(clusters), sizes).astype(str)

    def values(rng):
        return between * np.repeat(rng.normal(size=clusters), sizes) + rng.normal(size=sum(sizes))

    assert covered(lambda rng: statistics.mean_interval(values(rng), clusters=names), 0.0) >= LEAST

    def difference(rng):  # in [-1, 1], as those of outcomes
        return statistics.paired_interval(np.tanh(values(rng)), np.tanh(values(rng)), clusters=names)

    assert covered(difference, 0.0) >= LEAST


@pytest.mark.parametrize("levels", [32, 200, 512])
@pytest.mark.parametrize("success", [0.1, 0.3, 0.5])
def test_over_levels(levels, success):
    def rates(rng):
        odds = rng.normal(size=levels) + np.log(success / (1 - success))
        return 1 / (1 + np.exp(-odds))

    def outcomes(rng, samples=None):
        return rng.random((levels,) if samples is None else (samples, levels)) < rates(rng)

    truth = Case(1, 2, success, 0.0, 1.0).truth
    assert covered(lambda rng: statistics.success_interval(outcomes(rng)), truth) >= LEAST
    assert covered(lambda rng: statistics.success_interval(outcomes(rng, 4).mean(axis=0)), truth) >= LEAST
    assert covered(lambda rng: statistics.mean_interval(10.0 * outcomes(rng) - 0.1), 10 * truth - 0.1) >= LEAST

    def pair(rng):
        both = rng.random((2, levels)) < rates(rng)
        return statistics.paired_interval(*both)

    assert covered(pair, 0.0) >= LEAST
