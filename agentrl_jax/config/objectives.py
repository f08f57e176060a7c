"""Objectives: a union, discriminated by `kind`, of the losses of the policy; their formulas are in `algos.losses`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, Tag

from agentrl_jax.config.fields import BY_KIND, LARGEST, OWN, TRACED, AboveZero, Fraction, NonNegative, Section
from agentrl_jax.config.own import OwnObjective


class _Objective(Section):
    """What others need to know of an objective."""

    has_ratio: ClassVar[bool] = True
    """Reads log-probabilities of before the update."""
    from_rollout: ClassVar[bool] = False
    """Measures from the log-probabilities of the rollout."""
    unit: ClassVar[Literal["token", "row"]] = "token"
    """What a loss belongs to."""


class Ppo(_Objective):
    """PPO's clipped surrogate."""

    kind: Literal["ppo"] = "ppo"
    clip_low: Annotated[Fraction, TRACED] = 0.2
    """Lowest ratio is 1 - clip_low; 1: no lower bound."""
    clip_high: Annotated[NonNegative, TRACED] = 0.28
    """Highest ratio is 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = 3.0
    """Bound of the loss for negative advantages, as a multiple of the advantage; none: no bound."""


class Gspo(_Objective):
    """PPO's surrogate with one ratio per row (Zheng et al. 2025)."""

    kind: Literal["gspo"] = "gspo"
    clip_low: Annotated[Fraction, TRACED] = 3e-4
    """Lowest ratio is 1 - clip_low."""
    clip_high: Annotated[NonNegative, TRACED] = 4e-4
    """Highest ratio is 1 + clip_high."""


class Gmpo(_Objective):
    """One ratio per row, the geometric mean of its tokens' clipped ratios, and the mean of their advantages.

    Zhao et al. 2025, arXiv 2507.20673.
    """

    unit: ClassVar[Literal["token", "row"]] = "row"

    kind: Literal["gmpo"] = "gmpo"
    clip_low: Annotated[NonNegative, TRACED] = 0.4
    """Lowest logarithm of a token's ratio is minus this."""
    clip_high: Annotated[NonNegative, TRACED] = 0.4
    """Highest logarithm of a token's ratio."""


class Cispo(_Objective):
    """Clipped importance weights, so that every token has a gradient (MiniMax 2025)."""

    kind: Literal["cispo"] = "cispo"
    clip_low: Annotated[Fraction, TRACED] = 1.0
    """Lowest weight is 1 - clip_low; 1: no lower bound."""
    clip_high: Annotated[NonNegative, TRACED] = 0.28
    """Highest weight is 1 + clip_high."""


class Sapo(_Objective):
    """A soft clip: a token's gradient fades as its ratio leaves 1 (Gao et al. 2025, arXiv 2511.20347)."""

    kind: Literal["sapo"] = "sapo"
    tau_pos: Annotated[AboveZero, TRACED] = 1.0
    """How fast it fades where the advantage is positive; more is faster."""
    tau_neg: Annotated[AboveZero, TRACED] = 1.05
    """How fast it fades where the advantage is negative or 0."""


class _Dppo(_Objective):
    """Fields of objectives that bound a divergence from the policy that sampled, not a ratio."""

    from_rollout: ClassVar[bool] = True
    ratio_cap: Annotated[float, Field(ge=1.0, le=LARGEST, allow_inf_nan=False)] = 20.0
    """Largest importance weight of a token."""


class DppoTv(_Dppo):
    """Importance weights, 0 for tokens that a step would lead further from their probability in the rollout.

    Qi et al. 2026, arXiv 2602.04879.
    """

    kind: Literal["dppo_tv"] = "dppo_tv"
    clip_low: Annotated[Fraction, TRACED] = 0.15
    """How far the probability of a token may fall below that of the rollout before it is lowered no further."""
    clip_high: Annotated[Fraction, TRACED] = 0.15
    """How far it may rise before it is raised no further."""


class DppoKl(_Dppo):
    """As dppo_tv, with the KL divergence of the two choices "this token" and "another one"."""

    kind: Literal["dppo_kl"] = "dppo_kl"
    clip_low: Annotated[NonNegative, TRACED] = 0.05
    """Divergence in nats up to which the probability of a token is lowered further."""
    clip_high: Annotated[NonNegative, TRACED] = 0.05
    """Divergence in nats up to which it is raised further."""


class PolicyGradient(_Objective):
    """REINFORCE, without a ratio and without clipping."""

    has_ratio: ClassVar[bool] = False

    kind: Literal["policy_gradient"] = "policy_gradient"


Objective = Annotated[
    Annotated[Ppo, Tag("ppo")]
    | Annotated[Gspo, Tag("gspo")]
    | Annotated[Gmpo, Tag("gmpo")]
    | Annotated[Cispo, Tag("cispo")]
    | Annotated[Sapo, Tag("sapo")]
    | Annotated[DppoTv, Tag("dppo_tv")]
    | Annotated[DppoKl, Tag("dppo_kl")]
    | Annotated[PolicyGradient, Tag("policy_gradient")]
    | Annotated[OwnObjective, Tag(OWN)],
    BY_KIND,
]
