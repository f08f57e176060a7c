"""Corrections of differences between the log-probabilities of rollout and learner: a union, discriminated by `kind`.

The weights are those of `algos.importance`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from agentrl_jax.config.fields import LARGEST, Fraction, Section
from agentrl_jax.errors import BadValue

Criterion = Literal["ratio", "k1", "k2", "k3"]
Reduction = Literal["token", "mean", "sum", "max"]


class NoCorrection(Section):
    """No correction of differences between the log-probabilities of rollout and learner."""

    kind: Literal["none"] = "none"
    ratio_from: Literal["learner", "rollout"] = "learner"
    """Where the old log-probabilities of the ratio are from. learner: computed by the learner before the first step;
    with more than one step this takes another forward pass. rollout: those of the rollout, which saves that pass. Use
    it only where both are close (in float32 they differ in their last bits, by up to 1.8e-5 nats where measured): any
    difference counts as a change of the policy."""


class Replay(Section):
    """Recomputes log-probabilities by replaying the rollout in the engine, equal to the rollout's bit for bit."""

    ratio_from: ClassVar[Literal["rollout"]] = "rollout"

    kind: Literal["replay"] = "replay"


class Tis(Section):
    """Truncated importance sampling (Yao et al. 2025): importance weights from rollout to learner, within bounds."""

    ratio_from: ClassVar[Literal["learner"]] = "learner"

    kind: Literal["tis"] = "tis"
    low: Fraction = 0.0
    """Smallest weight."""
    high: Annotated[float, Field(ge=1.0, le=LARGEST, allow_inf_nan=False)] = 2.0
    """Largest weight."""
    reduction: Literal["token", "mean", "sum"] = "token"
    """token: one weight per token; mean, sum: one per row, the geometric mean or the product of its tokens' ratios."""


class IcePop(Section):
    """Drops tokens or rows that differ too much (IcePop, Zhao et al. 2025); others have importance weights."""

    ratio_from: ClassVar[Literal["learner"]] = "learner"

    kind: Literal["icepop"] = "icepop"
    criterion: Criterion = "ratio"
    """What is bounded: the ratio r of learner and rollout, or an estimate of their KL divergence at the token in nats:
    k1, -log r; k2, half its square; k3, r - 1 - log r."""
    low: Annotated[float, Field(ge=-LARGEST, le=1.0, allow_inf_nan=False)] | None = 0.5
    """Smallest value that is kept; none: no lower bound, as is usual for k1, k2 and k3."""
    high: Annotated[float, Field(gt=0.0, le=LARGEST, allow_inf_nan=False)] = 2.0
    """Largest value that is kept."""
    reduction: Reduction = "token"
    """token: tokens are dropped one by one; mean, sum: whole rows, by the mean or the sum over their tokens (of the
    logarithms for ratio); max: whole rows, by the token that is furthest."""
    weighted: bool = True
    """What is kept has its ratio as a weight: that of the token, or with ratio and mean or sum that of the row. false:
    weight 1."""

    @model_validator(mode="before")
    @classmethod
    def _unbounded(cls, data: Any) -> Any:
        """Divergences have no lower bound unless it is given."""
        other = isinstance(data, Mapping) and data.get("criterion", "ratio") != "ratio"
        return {"low": None, **data} if other else data

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        bounds = {"ratio": (0.0, 1.0), "k1": (-LARGEST, 0.0), "k2": (0.0, 0.0), "k3": (0.0, 0.0)}
        least, equal = bounds[self.criterion]  # what has no difference is kept
        if self.low is not None and not least <= self.low <= equal:
            why = f"expected {least:.10g} to {equal:g} with criterion {self.criterion}, or none"
            raise BadValue.of("algo.mismatch.low", self.low, why)
        if self.high < equal:
            raise BadValue.of("algo.mismatch.high", self.high, f"expected at least 1 with criterion {self.criterion}")
        return self


Mismatch = Annotated[NoCorrection | Replay | Tis | IcePop, Field(discriminator="kind")]
