"""Simulated coverage of confidence intervals: how often they contain the truth of a model that draws the outcomes."""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy import special

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
    def truth(self) -> float:
        """The mean success over all seeds and levels."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(64)
        spread = np.hypot(self.of_seeds, self.of_levels) if self.levels > 1 else self.of_seeds
        return float(np.sum(weights * special.expit(special.logit(self.success) + spread * nodes)) / weights.sum())

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Outcomes f64 [seeds, levels]."""
        odds = special.logit(self.success) + self.of_seeds * rng.normal(size=(self.seeds, 1))
        if self.levels == 1:
            return rng.binomial(128, special.expit(odds)) / 128
        odds = odds + self.of_levels * rng.normal(size=self.levels)
        return (rng.random(odds.shape) < special.expit(odds)).astype(np.float64)


def cases(seeds: int) -> Iterator[Case]:
    """All cases of a number of seeds."""
    for levels, success, of_seeds, of_levels in itertools.product(LEVELS, SUCCESS, OF_SEEDS, OF_LEVELS):
        if levels > 1 or not of_levels:
            yield Case(seeds, levels, success, of_seeds, of_levels)


def covered(draw: Callable[[np.random.Generator], dict], truth: float, times: int) -> float:
    """The share of intervals of `draw` that contain the truth."""
    rng = np.random.default_rng(0)
    found = (draw(rng) for _ in range(times))
    return float(np.mean([interval["low"] <= truth <= interval["high"] for interval in found]))
