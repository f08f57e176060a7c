"""Losses per token, and the weights that turn them into one number.

Letters: `N` rows of `S` positions, aligned with the token that is predicted. A loss per token is defined everywhere;
`token_weights` is 0 where a token was not sampled, so that `sum(loss * weights)` is the loss and its gradient is zero
there. The inputs have to be finite at every position, padding included.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct

Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to plus or minus this, far outside any clip range, so that no ratio overflows."""


class PolicyStats(struct.PyTreeNode):
    """What the policy loss saw, per token."""

    ratio: jax.Array
    """f32[N, S], probability under the policy divided by that under the behaviour policy."""
    log_ratio: jax.Array
    """f32[N, S], its logarithm, clamped."""
    clipped: jax.Array
    """bool[N, S], the clip range is what decided the loss, so that the token has no gradient."""
    clipped_low: jax.Array
    """bool[N, S], the dual clip's bound is what decided the loss (verl's `pg_clipfrac_lower`)."""


class Denominators(struct.PyTreeNode):
    """What the loss of a whole minibatch is divided by; add those of its parts, on all devices, before use."""

    tokens: jax.Array
    """f32[], sampled tokens."""
    sequences: jax.Array
    """f32[], rows with at least one sampled token."""


def policy_loss(
    logprob: jax.Array,
    old_logprob: jax.Array,
    advantages: jax.Array,
    *,
    clip_low: jax.Array | float,
    clip_high: jax.Array | float,
    dual_clip: jax.Array | float | None,
) -> tuple[jax.Array, PolicyStats]:
    """PPO's clipped surrogate with separate bounds and a dual clip.

    max(-A r, -A clip(r, 1 - low, 1 + high)) (Schulman et al. 2017, eq. 7; separate bounds: Yu et al. 2025, DAPO), and
    for A < 0 at most -A c (Ye et al. 2020, eq. 5). Gradients reach `logprob` only.

    Args:
        logprob: f32[N, S], log-probability of the tokens under the policy that is trained.
        old_logprob: f32[N, S], under the policy they were sampled from.
        advantages: f32[N, S]
        clip_low: lowest ratio is 1 - clip_low.
        clip_high: highest ratio is 1 + clip_high.
        dual_clip: c > 1; None or infinity: no bound.

    Returns:
        Loss per token f32[N, S] and PolicyStats.
    """
    old_logprob, advantages = jax.lax.stop_gradient((old_logprob, advantages))
    bound = jnp.inf if dual_clip is None else dual_clip
    log_ratio = jnp.clip(logprob - old_logprob, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = jnp.exp(log_ratio)
    free = -advantages * ratio
    confined = -advantages * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    surrogate = jnp.maximum(free, confined)
    ceiling = jnp.where(advantages < 0, -advantages, jnp.inf) * bound
    clipped_low = surrogate > ceiling
    stats = PolicyStats(ratio=ratio, log_ratio=log_ratio, clipped=confined > free, clipped_low=clipped_low)
    return jnp.where(clipped_low, ceiling, surrogate), jax.lax.stop_gradient(stats)


def importance_weights(
    logprob: jax.Array, behaviour_logprob: jax.Array, cap: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """Truncated importance weights min(exp(logprob - behaviour), C) of the policy loss (Yao et al. 2025, TIS).

    They correct for tokens that were drawn from a distribution which the learner computes differently; the ratio of
    `policy_loss` is then that to the learner's own log-probabilities.

    Args:
        logprob: f32[N, S], by the learner, before the update.
        behaviour_logprob: f32[N, S], of the distribution the tokens were drawn from.
        cap: C.

    Returns:
        Weights f32[N, S] without a gradient, and bool[N, S]: the weight was truncated.
    """
    log_ratio = jnp.clip(logprob - behaviour_logprob, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = jax.lax.stop_gradient(jnp.exp(log_ratio))
    return jnp.minimum(ratio, cap), ratio > cap


def value_loss(
    values: jax.Array, old_values: jax.Array, returns: jax.Array, *, clip: jax.Array | float | None
) -> tuple[jax.Array, jax.Array]:
    """Half the squared error of the critic, clipped as in PPO2.

    0.5 max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2), with the target R. Gradients reach `values` only.

    Args:
        values: f32[N, S], of the critic that is trained.
        old_values: f32[N, S], of the critic that the advantages were computed with.
        returns: f32[N, S], targets, not whitened.
        clip: c > 0; None or infinity: no clip.

    Returns:
        Loss per token f32[N, S], and bool[N, S]: the clipped value is what decided the loss.
    """
    old_values, returns = jax.lax.stop_gradient((old_values, returns))
    reach = jnp.inf if clip is None else clip
    free = jnp.square(values - returns)
    confined = jnp.square(jnp.clip(values, old_values - reach, old_values + reach) - returns)
    return 0.5 * jnp.maximum(free, confined), confined > free


def count(mask: jax.Array) -> Denominators:
    """Denominators of the rows in `mask` bool[N, S]; those of several parts are added leaf by leaf (or by `psum`)."""
    return Denominators(
        tokens=jnp.sum(mask, dtype=jnp.float32), sequences=jnp.sum(jnp.any(mask, axis=1), dtype=jnp.float32)
    )


def token_weights(
    mask: jax.Array, mode: Aggregation, denominators: Denominators, *, norm_length: jax.Array | float
) -> jax.Array:
    """Weights w such that sum(loss * w) over all parts of a minibatch is the minibatch's loss, however it is cut.

    token_mean: every sampled token counts the same. seq_mean_token_mean: every row counts the same, as does every token
    inside a row. seq_mean_token_sum: the mean over rows of their sums. seq_mean_token_sum_norm: that divided by
    `norm_length` (Liu et al. 2025, Dr. GRPO; verl's mode of that name leaves out the division by the number of rows).
    Rows without sampled tokens do not count.

    Args:
        mask: bool[N, S], the part at hand.
        mode: one of the four.
        denominators: of the whole minibatch.
        norm_length: tokens, a constant of the run (its longest row); used by seq_mean_token_sum_norm only.

    Returns:
        f32[N, S], 0 where `mask` does not hold.

    Raises:
        ValueError: `mode` is none of the four.
    """
    rows = jnp.maximum(denominators.sequences, 1.0)
    divisor: jax.Array
    if mode == "token_mean":
        divisor = jnp.maximum(denominators.tokens, 1.0)
    elif mode == "seq_mean_token_mean":
        divisor = rows * jnp.maximum(jnp.sum(mask, axis=1, keepdims=True, dtype=jnp.float32), 1.0)
    elif mode == "seq_mean_token_sum":
        divisor = rows
    elif mode == "seq_mean_token_sum_norm":
        divisor = rows * norm_length
    else:
        raise ValueError(
            f"aggregation is {mode!r}; expected token_mean, seq_mean_token_mean, seq_mean_token_sum or "
            "seq_mean_token_sum_norm"
        )
    return jnp.where(mask, 1.0 / divisor, 0.0)
