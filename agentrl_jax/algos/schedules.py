"""How many turns an iteration plays: ScalingInter-RL (arXiv 2509.08755, section 3.3) and its relatives.

A horizon is a traced number, so that changing it compiles nothing. What moves besides it (learning rate, clip range,
entropy coefficient, temperature) is an `optax.Schedule` of the iteration.
"""

import dataclasses
import math


def stepwise(iteration: int, horizons: tuple[int, ...], every: int) -> int:
    """The horizon of an iteration, counted from 0: each of `horizons` for `every` iterations, the last one for ever.

    It depends on the iteration alone, so that a resumed run goes on with the horizon it would have had (the original
    keeps a counter, which is one off after a resume).
    """
    return horizons[min(iteration // every, len(horizons) - 1)]


@dataclasses.dataclass(frozen=True)
class AdaptiveRule:
    """When the adaptive horizon moves on.

    Attributes:
        horizons: increasing.
        window: iterations of a mean; two windows side by side are compared, so that a stage lasts at least twice this.
        least_gain: the success rate has to have risen by so much from one window to the next, or
        least_spread: the in-group standard deviation of returns has to have stayed above this share of what it was in
            the first window of the stage; the horizon moves on when success stands still or the spread is used up.
    """

    horizons: tuple[int, ...]
    window: int
    least_gain: float
    least_spread: float


@dataclasses.dataclass(frozen=True)
class AdaptiveHorizon:
    """State of an adaptive horizon, plain numbers for a checkpoint.

    Attributes:
        stage: index of the present horizon.
        success: of the iterations of this stage, the latest 2 windows.
        spread: in-group standard deviation likewise.
        first_spread: mean of the stage's first window; None before it is full.
    """

    stage: int = 0
    success: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    first_spread: float | None = None

    def after(self, rule: AdaptiveRule, success: float, spread: float) -> "AdaptiveHorizon":
        """The state after an iteration with this success rate and in-group standard deviation.

        Measurements that are not finite (an iteration in which every environment broke) change nothing.
        """
        if not (math.isfinite(success) and math.isfinite(spread)):
            return self
        kept = 2 * rule.window
        successes, spreads = (*self.success, success)[-kept:], (*self.spread, spread)[-kept:]
        first = self.first_spread
        if first is None and len(spreads) == rule.window:
            first = _mean(spreads)
        if len(successes) < kept or self.stage == len(rule.horizons) - 1:
            return AdaptiveHorizon(self.stage, successes, spreads, first)
        gain = _mean(successes[rule.window :]) - _mean(successes[: rule.window])
        used_up = first is not None and _mean(spreads[rule.window :]) < rule.least_spread * first
        if gain < rule.least_gain or used_up:
            return AdaptiveHorizon(self.stage + 1)
        return AdaptiveHorizon(self.stage, successes, spreads, first)


def _mean(numbers: tuple[float, ...]) -> float:
    return sum(numbers) / len(numbers)
