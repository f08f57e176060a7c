"""Schedules of the turns per episode: ScalingInter-RL (arXiv 2509.08755, section 3.3) and an adaptive variant.

The horizon is a traced number, so changing it does not recompile anything. Learning rate, clip range, entropy
coefficient and temperature are scheduled by an `optax.Schedule` of the iteration instead.
"""

import dataclasses
import math
from typing import Self

from agentrl_jax.config.algo import AdaptiveHorizon


def stepwise(iteration: int, horizons: tuple[int, ...], every: int) -> int:
    """The horizon of an iteration (counted from 0): each of `horizons` for `every` iterations, then always the last.

    It depends on the iteration only, so a resumed run has the same horizons as one without interruption (the original
    keeps a counter, which is off by one after a resume).
    """
    return horizons[min(iteration // every, len(horizons) - 1)]


@dataclasses.dataclass(frozen=True)
class AdaptiveHorizonState:
    """State of an adaptive horizon: plain numbers that are saved in checkpoints."""

    stage: int = 0
    """Index of the current horizon."""
    success: tuple[float, ...] = ()
    """Success rates of the latest iterations of this stage, at most 2 * `every`."""
    spread: tuple[float, ...] = ()
    """In-group standard deviations of the same iterations."""
    first_spread: float | None = None
    """Mean of `spread` over the stage's first `every` iterations; None before these are complete."""

    def after(self, rule: AdaptiveHorizon, success: float, spread: float) -> Self:
        """The state after an iteration with this success rate and in-group standard deviation.

        The mean over the latest `every` iterations is compared with the mean over the `every` iterations before them,
        so a stage lasts at least 2 * `every` iterations. Values that are not finite (an iteration in which every
        environment failed) change nothing.
        """
        if not (math.isfinite(success) and math.isfinite(spread)):
            return self
        kept = 2 * rule.every
        successes, spreads = (*self.success, success)[-kept:], (*self.spread, spread)[-kept:]
        first = self.first_spread
        if first is None and len(spreads) == rule.every:
            first = _mean(spreads)
        if len(successes) < kept or self.stage == len(rule.turns) - 1:
            return type(self)(self.stage, successes, spreads, first)
        gain = _mean(successes[rule.every :]) - _mean(successes[: rule.every])
        used_up = first is not None and _mean(spreads[rule.every :]) < rule.min_spread * first
        if gain < rule.min_gain or used_up:
            return type(self)(self.stage + 1)
        return type(self)(self.stage, successes, spreads, first)


def _mean(numbers: tuple[float, ...]) -> float:
    return sum(numbers) / len(numbers)
