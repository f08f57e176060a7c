"""Losses per token, and the weights that turn them into one number.

Shapes: `N` rows of `S` positions, aligned with the token that is predicted. A loss per token is defined at every
position. `token_weights` is 0 at tokens that were not sampled, so `sum(loss * weights)` is the loss, with zero gradient
at those tokens. Inputs must be finite at every position, padding included.
"""

from typing import Literal, assert_never

import jax
import jax.numpy as jnp
from flax import struct

from agentrl_jax.config.algo import Aggregation, Granularity

Objective = Literal["ppo", "gspo", "cispo", "policy_gradient"]
Correction = Literal["truncated", "masked"]

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to plus or minus this, far outside any clip range, so that no ratio overflows."""


class PolicyStats(struct.PyTreeNode):
    """Statistics of the policy loss, per token."""

    log_ratio: jax.Array
    """f32[N, S], logarithm of the probability under the policy divided by that under the behavior policy, clamped."""
    clipped: jax.Array
    """bool[N, S], the clip range determined the loss, so the token has no gradient."""
    clipped_low: jax.Array
    """bool[N, S], the dual clip's bound determined the loss (verl's `pg_clipfrac_lower`)."""

    @property
    def ratio(self) -> jax.Array:
        """f32[N, S], ratio of the probabilities."""
        return jnp.exp(self.log_ratio)


class Denominators(struct.PyTreeNode):
    """Divisors of the loss of a whole minibatch; sum those of all microbatches on all devices before use."""

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
        logprob: f32[N, S], log-probability of the tokens under the policy being trained.
        old_logprob: f32[N, S], log-probability under the policy that sampled them.
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
    stats = PolicyStats(log_ratio=log_ratio, clipped=confined > free, clipped_low=clipped_low)
    return jnp.where(clipped_low, ceiling, surrogate), jax.lax.stop_gradient(stats)


def gspo_loss(
    logprob: jax.Array,
    old_logprob: jax.Array,
    advantages: jax.Array,
    mask: jax.Array,
    *,
    clip_low: jax.Array | float,
    clip_high: jax.Array | float,
) -> tuple[jax.Array, PolicyStats]:
    """Clipped surrogate with one ratio per row, the geometric mean of its tokens' ratios (Zheng et al. 2025, GSPO).

    The gradient is that of GSPO-token in that paper, which equals that of GSPO under `seq_mean_token_mean` with one
    advantage per row. A row is a whole trajectory, or one turn of it if rows hold single turns.

    Args:
        logprob: f32[N, S], as for `policy_loss`.
        old_logprob: f32[N, S]
        advantages: f32[N, S]
        mask: bool[N, S] sampled tokens.
        clip_low: lowest ratio is 1 - clip_low; the paper's ranges are near 3e-4.
        clip_high: highest ratio is 1 + clip_high.

    Returns:
        Loss per token f32[N, S] and PolicyStats, with the row's ratio at each of its tokens.
    """
    of_row = jax.lax.stop_gradient(sequence_log_ratio(logprob, old_logprob, mask))
    moving = of_row + logprob - jax.lax.stop_gradient(logprob)
    return policy_loss(
        moving, jnp.zeros_like(moving), advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=None
    )


def cispo_loss(
    logprob: jax.Array,
    old_logprob: jax.Array,
    advantages: jax.Array,
    *,
    clip_low: jax.Array | float,
    clip_high: jax.Array | float,
) -> tuple[jax.Array, PolicyStats]:
    """REINFORCE with clipped importance weights (MiniMax 2025, arXiv 2506.13585, CISPO): no token loses its gradient.

    -A sg(clip(r, 1 - low, 1 + high)) log p. With `clip_low` 1 there is no lower bound, as in the paper.

    Args:
        logprob: f32[N, S], as for `policy_loss`.
        old_logprob: f32[N, S]
        advantages: f32[N, S]
        clip_low: lowest weight is 1 - clip_low.
        clip_high: highest weight is 1 + clip_high.

    Returns:
        Loss per token f32[N, S] and PolicyStats; `clipped` marks clipped weights.
    """
    log_ratio = jnp.clip(jax.lax.stop_gradient(logprob - old_logprob), -MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = jnp.exp(log_ratio)
    weight = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    stats = PolicyStats(log_ratio=log_ratio, clipped=weight != ratio, clipped_low=jnp.zeros(ratio.shape, bool))
    return -jax.lax.stop_gradient(advantages * weight) * logprob, jax.lax.stop_gradient(stats)


def policy_gradient_loss(
    logprob: jax.Array, old_logprob: jax.Array, advantages: jax.Array
) -> tuple[jax.Array, PolicyStats]:
    """REINFORCE (Williams 1992): -A log p, without ratio or clip; the loss of RLOO and ReMax.

    Args:
        logprob: f32[N, S], as for `policy_loss`.
        old_logprob: f32[N, S], used for the statistics only.
        advantages: f32[N, S]

    Returns:
        Loss per token f32[N, S] and PolicyStats, with nothing clipped.
    """
    log_ratio = jnp.clip(logprob - old_logprob, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    none = jnp.zeros(log_ratio.shape, bool)
    stats = PolicyStats(log_ratio=log_ratio, clipped=none, clipped_low=none)
    return -jax.lax.stop_gradient(advantages) * logprob, jax.lax.stop_gradient(stats)


def objective(
    name: Objective,
    logprob: jax.Array,
    old_logprob: jax.Array,
    advantages: jax.Array,
    mask: jax.Array,
    *,
    clip_low: jax.Array | float,
    clip_high: jax.Array | float,
    dual_clip: jax.Array | float | None,
) -> tuple[jax.Array, PolicyStats]:
    """Dispatches to `policy_loss` (ppo), `gspo_loss`, `cispo_loss` or `policy_gradient_loss`.

    Args:
        name: one of the four; policy_gradient uses no bound.
        logprob: f32[N, S], as for `policy_loss`.
        old_logprob: f32[N, S]
        advantages: f32[N, S]
        mask: bool[N, S] sampled tokens; only gspo reads it.
        clip_low: lowest ratio or weight is 1 - clip_low.
        clip_high: highest ratio or weight is 1 + clip_high.
        dual_clip: as for `policy_loss`; only ppo reads it.

    Returns:
        Loss per token f32[N, S] and PolicyStats.
    """
    if name == "ppo":
        return policy_loss(
            logprob, old_logprob, advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
        )
    if name == "gspo":
        return gspo_loss(logprob, old_logprob, advantages, mask, clip_low=clip_low, clip_high=clip_high)
    if name == "cispo":
        return cispo_loss(logprob, old_logprob, advantages, clip_low=clip_low, clip_high=clip_high)
    if name == "policy_gradient":
        return policy_gradient_loss(logprob, old_logprob, advantages)
    assert_never(name)


def sequence_log_ratio(logprob: jax.Array, old_logprob: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean log-ratio f32[N, 1] of each row's sampled tokens; 0 for a row without sampled tokens."""
    total = jnp.sum(jnp.where(mask, logprob - old_logprob, 0.0), axis=1, keepdims=True)
    return total / jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)


def importance_weights(
    logprob: jax.Array,
    behavior_logprob: jax.Array,
    mask: jax.Array,
    *,
    cap: jax.Array | float,
    correction: Correction = "truncated",
    level: Granularity = "token",
) -> tuple[jax.Array, jax.Array]:
    """Importance weights of the policy loss for the mismatch of rollout and learner; no gradient flows through them.

    They correct for the rollout computing log-probabilities differently from the learner. The ratio of `policy_loss` is
    then relative to the learner's log-probabilities.

    Args:
        logprob: f32[N, S], computed by the learner, before the update.
        behavior_logprob: f32[N, S], of the distribution that the tokens were sampled from.
        mask: bool[N, S] sampled tokens.
        cap: C, at least 1.
        correction: truncated: min(r, C) (Yao et al. 2025, TIS). masked: r inside [1/C, C], 0 outside, which excludes
            the token (Zhao et al. 2025, IcePop; MIS).
        level: token: r is the ratio of each token. sequence: r is the geometric mean of the ratios of its row.

    Returns:
        Weights f32[N, S], and bool[N, S], true where the weight was truncated or masked.
    """
    log_ratio = logprob - behavior_logprob
    if level == "sequence":
        log_ratio = jnp.broadcast_to(sequence_log_ratio(logprob, behavior_logprob, mask), log_ratio.shape)
    ratio = jax.lax.stop_gradient(jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)))
    if correction == "truncated":
        return jnp.minimum(ratio, cap), ratio > cap
    if correction == "masked":
        outside = (ratio > cap) | (ratio < 1.0 / cap)
        return jnp.where(outside, 0.0, ratio), outside
    assert_never(correction)


def value_loss(
    values: jax.Array, old_values: jax.Array, returns: jax.Array, *, clip: jax.Array | float | None
) -> tuple[jax.Array, jax.Array]:
    """Half the squared error of the critic, clipped as in PPO2.

    0.5 max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2), with the target R. Gradients reach `values` only.

    Args:
        values: f32[N, S], from the critic being trained.
        old_values: f32[N, S], from the critic that the advantages were computed with.
        returns: f32[N, S], targets, not whitened.
        clip: c > 0; None or infinity: no clip.

    Returns:
        Loss per token f32[N, S], and bool[N, S], true where the clipped value determined the loss.
    """
    old_values, returns = jax.lax.stop_gradient((old_values, returns))
    reach = jnp.inf if clip is None else clip
    free = jnp.square(values - returns)
    confined = jnp.square(jnp.clip(values, old_values - reach, old_values + reach) - returns)
    return 0.5 * jnp.maximum(free, confined), confined > free


def count(mask: jax.Array) -> Denominators:
    """Denominators of the rows in `mask` bool[N, S]; add those of several microbatches leaf by leaf (or by `psum`)."""
    return Denominators(
        tokens=jnp.sum(mask, dtype=jnp.float32), sequences=jnp.sum(jnp.any(mask, axis=1), dtype=jnp.float32)
    )


def token_weights(
    mask: jax.Array, mode: Aggregation, denominators: Denominators, *, norm_length: jax.Array | float
) -> jax.Array:
    """Weights w such that sum(loss * w) over all microbatches is the minibatch's loss, however it is split.

    token_mean: every sampled token has the same weight. seq_mean_token_mean: every row has the same weight, as does
    every token inside a row. seq_mean_token_sum: the mean over rows of their token sums. seq_mean_token_sum_norm: that
    divided by `norm_length` (Liu et al. 2025, Dr. GRPO; verl's mode of that name does not divide by the number of
    rows). Rows without sampled tokens do not count.

    Args:
        mask: bool[N, S], of this microbatch.
        mode: one of the four.
        denominators: of the whole minibatch.
        norm_length: in tokens, constant during a run (its longest row); used by seq_mean_token_sum_norm only.

    Returns:
        f32[N, S], 0 where `mask` is false.
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
        assert_never(mode)
    return jnp.where(mask, 1.0 / divisor, 0.0)
