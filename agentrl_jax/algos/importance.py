"""Importance weights for the mismatch of rollout and learner.

They correct for the rollout computing log-probabilities differently from the learner, before the update. Ratios of the
objective are then relative to the learner's log-probabilities. No gradient flows through the weights.

Shapes: `N` rows of `S` positions, as in `losses`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from agentrl_jax.algos.losses import MAX_LOG_RATIO, sequence_log_ratio
from agentrl_jax.config.mismatch import IcePop, Reduction, Tis


def importance_weights(
    logprob: Float[Array, "N S"], behavior_logprob: Float[Array, "N S"], mask: Bool[Array, "N S"], rule: Tis | IcePop
) -> tuple[Float[Array, "N S"], Bool[Array, "N S"]]:
    """The weight of each token, and where a bound determined it.

    The ratio r is exp(logprob - behavior_logprob), of each token or of a row, see `reduced`. tis: min(max(r, low),
    high) (Yao et al. 2025). icepop: 0 where the criterion is outside [low, high], else r or 1 (Zhao et al. 2025; of
    rows, as verl's rejection sampling).
    """
    log_ratio = jax.lax.stop_gradient(logprob - behavior_logprob)
    by_row = reduced(log_ratio, mask, rule.reduction)
    ratio = _exp(by_row)
    if rule.kind == "tis":
        return jnp.clip(ratio, rule.low, rule.high), (ratio > rule.high) | (ratio < rule.low)
    measured, weight = ratio, ratio
    if rule.criterion != "ratio":
        measured = reduced(divergence(log_ratio, rule.criterion), mask, rule.reduction)
    if rule.criterion != "ratio" or rule.reduction == "max":
        weight = _exp(log_ratio)
    outside = measured > rule.high
    if rule.low is not None:
        outside |= measured < rule.low
    return jnp.where(outside, 0.0, weight if rule.weighted else 1.0), outside


def divergence(log_ratio: Float[Array, "N S"], kind: str) -> Float[Array, "N S"]:
    """Estimates of KL(rollout || learner) from tokens of the rollout (Schulman 2020).

    k1: -log r; k2: (log r)^2 / 2; k3: r - 1 - log r, which is at least 0.
    """
    if kind == "k1":
        return -log_ratio
    return 0.5 * jnp.square(log_ratio) if kind == "k2" else _exp(log_ratio) - 1.0 - log_ratio


def reduced(x: Float[Array, "N S"], mask: Bool[Array, "N S"], reduction: Reduction) -> Float[Array, "N S"]:
    """A number of each token as it is, or one of its row: the mean, the sum, or that furthest from 0 (max)."""
    if reduction == "token":
        return x
    if reduction == "mean":
        of_row = sequence_log_ratio(x, jnp.zeros_like(x), mask)
    elif reduction == "sum":
        of_row = jnp.sum(jnp.where(mask, x, 0.0), axis=1, keepdims=True)
    else:
        furthest = jnp.argmax(jnp.where(mask, jnp.abs(x), -1.0), axis=1, keepdims=True)
        of_row = jnp.take_along_axis(x, furthest, axis=1)
    return jnp.broadcast_to(of_row, x.shape)


def _exp(log_ratio: Float[Array, "N S"]) -> Float[Array, "N S"]:
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
