"""How many turns an iteration plays: ScalingInter-RL (arXiv 2509.08755, section 3.3) and its relatives.

A horizon is a traced number, so that changing it compiles nothing. What moves besides it (learning rate, clip range,
entropy coefficient, temperature) is an `optax.Schedule` of the iteration.
"""

import dataclasses
import math

from agentrl_jax.config import algo as config


def stepwise(iteration: int, horizons: tuple[int, ...], every: int) -> int:
    """The horizon of an iteration, counted from 0: each of `horizons` for `every` iterations, the last one for ever.

    It depends on the iteration alone, so that a resumed run goes on with the horizon it would have had (the original
    keeps a counter, which is one off after a resume).
    """
    return horizons[min(iteration // every, len(horizons) - 1)]


@dataclasses.dataclass(frozen=True)
class AdaptiveHorizon:
    """State of an adaptive horizon, plain numbers for a checkpoint.

    Attributes:
        stage: index of the present horizon.
        success: of the iterations of this stage, the latest two stretches.
        spread: in-group standard deviation likewise.
        first_spread: mean of the stage's first stretch; None before it is full.
    """

    stage: int = 0
    success: tuple[float, ...] = ()
    spread: tuple[float, ...] = ()
    first_spread: float | None = None

    def after(self, rule: config.AdaptiveHorizon, success: float, spread: float) -> "AdaptiveHorizon":
        """The state after an iteration with this success rate and in-group standard deviation.

        The mean over the latest `every` iterations is compared with that over those before them, so that a stage lasts
        at least twice as long. Measurements that are not finite (an iteration in which every environment broke) change
        nothing.
        """
        if not (math.isfinite(success) and math.isfinite(spread)):
            return self
        kept = 2 * rule.every
        successes, spreads = (*self.success, success)[-kept:], (*self.spread, spread)[-kept:]
        first = self.first_spread
        if first is None and len(spreads) == rule.every:
            first = _mean(spreads)
        if len(successes) < kept or self.stage == len(rule.turns) - 1:
            return AdaptiveHorizon(self.stage, successes, spreads, first)
        gain = _mean(successes[rule.every :]) - _mean(successes[: rule.every])
        used_up = first is not None and _mean(spreads[rule.every :]) < rule.min_spread * first
        if gain < rule.min_gain or used_up:
            return AdaptiveHorizon(self.stage + 1)
        return AdaptiveHorizon(self.stage, successes, spreads, first)


def _mean(numbers: tuple[float, ...]) -> float:
    return sum(numbers) / len(numbers)
