"""Losses per token, and the weights that turn them into one number.

Shapes: `N` rows of `S` positions, aligned with the token that is predicted. A loss per token is defined at every
position. `token_weights` is 0 at tokens that were not sampled, so `sum(loss * weights)` is the loss, with zero gradient
at those tokens. Inputs must be finite at every position, padding included.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, assert_never

import jax
import jax.numpy as jnp
from flax import struct
from jax.scipy.special import rel_entr
from jaxtyping import Array, Bool, Float

from agentrl_jax.config.algo import Aggregation

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to plus or minus this, far outside any clip range, so that no ratio overflows."""


class PolicyStats(struct.PyTreeNode):
    """Statistics of the policy loss, per token."""

    log_ratio: Float[Array, "N S"]
    """Logarithm of the probability under the policy divided by that under the behavior policy, clamped."""
    clipped: Bool[Array, "N S"]
    """The clip range determined the loss, so the token has no gradient; for CISPO, the weight was clipped.

    For DPPO, the token was left out. False for losses that clip nothing.
    """
    clipped_low: Bool[Array, "N S"]
    """The dual clip's bound determined the loss (verl's `pg_clipfrac_lower`)."""

    @property
    def ratio(self) -> jax.Array:
        """Ratio of the probabilities."""
        return jnp.exp(self.log_ratio)


class Denominators(struct.PyTreeNode):
    """Divisors of the loss of a whole minibatch; sum those of all microbatches on all devices before use."""

    tokens: Float[Array, ""]
    """Number of sampled tokens."""
    sequences: Float[Array, ""]
    """Number of rows with at least one sampled token."""


class ObjectiveInputs(struct.PyTreeNode):
    """What an objective reads."""

    logprob: Float[Array, "N S"]
    """Log-probability of each token under the policy."""
    old_logprob: Float[Array, "N S"]
    """That of the policy that ratios are relative to; equal to `logprob` in the only step of a batch."""
    behavior_logprob: Float[Array, "N S"]
    """As computed by the rollout."""
    advantage: Float[Array, "N S"]
    mask: Bool[Array, "N S"]
    """Sampled tokens."""
    entropy: Float[Array, "N S"]
    """Of the policy, in nats."""


def _log_ratio(logprob: Float[Array, "N S"], old_logprob: Float[Array, "N S"]) -> Float[Array, "N S"]:
    return jnp.clip(logprob - old_logprob, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def _stats(log_ratio: Float[Array, "N S"], clipped: Bool[Array, "N S"] | None = None) -> PolicyStats:
    """Those of a loss without a dual clip; None: it clips nothing."""
    none = jnp.zeros(log_ratio.shape, bool)
    return jax.lax.stop_gradient(PolicyStats(log_ratio, none if clipped is None else clipped, none))


def with_stats(
    inputs: ObjectiveInputs, of_tokens: Float[Array, "N S"], clipped: Bool[Array, "N S"] | None
) -> tuple[Float[Array, "N S"], PolicyStats]:
    """Losses of sampled tokens with their statistics; `clipped` None: it clips nothing."""
    return jnp.where(inputs.mask, of_tokens, 0.0), _stats(_log_ratio(inputs.logprob, inputs.old_logprob), clipped)


def policy_loss(
    logprob: Float[Array, "N S"],
    old_logprob: Float[Array, "N S"],
    advantages: Float[Array, "N S"],
    *,
    clip_low: jax.Array | float,
    clip_high: jax.Array | float,
    dual_clip: jax.Array | float | None,
) -> tuple[Float[Array, "N S"], PolicyStats]:
    """PPO's clipped surrogate with separate bounds and a dual clip, per token.

    max(-A r, -A clip(r, 1 - low, 1 + high)) (Schulman et al. 2017, eq. 7; separate bounds: Yu et al. 2025, DAPO), and
    for A < 0 at most -A c (Ye et al. 2020, eq. 5), where c is `dual_clip`, above 1; None or infinity: no bound.
    `old_logprob` is that of the policy that sampled the tokens. Gradients reach `logprob` only.
    """
    old_logprob, advantages = jax.lax.stop_gradient((old_logprob, advantages))
    bound = jnp.inf if dual_clip is None else dual_clip
    log_ratio = _log_ratio(logprob, old_logprob)
    ratio = jnp.exp(log_ratio)
    unclipped = -advantages * ratio
    clipped = -advantages * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    surrogate = jnp.maximum(unclipped, clipped)
    ceiling = jnp.where(advantages < 0, -advantages, jnp.inf) * bound
    clipped_low = surrogate > ceiling
    stats = PolicyStats(log_ratio=log_ratio, clipped=clipped > unclipped, clipped_low=clipped_low)
    return jnp.where(clipped_low, ceiling, surrogate), jax.lax.stop_gradient(stats)


def gspo_loss(
    logprob: Float[Array, "N S"],
    old_logprob: Float[Array, "N S"],
    advantages: Float[Array, "N S"],
    mask: Bool[Array, "N S"],
    *,
    clip_low: jax.Array | float,
    clip_high: jax.Array | float,
) -> tuple[Float[Array, "N S"], PolicyStats]:
    """Clipped surrogate with one ratio per row, the geometric mean of its tokens' ratios (Zheng et al. 2025, GSPO).

    The gradient is that of GSPO-token in that paper, which equals that of GSPO under `seq_mean_token_mean` with one
    advantage per row. A row is a whole trajectory, or one turn of it if rows hold single turns. The paper's clip ranges
    are near 3e-4.
    """
    of_row = jax.lax.stop_gradient(sequence_log_ratio(logprob, old_logprob, mask))
    log_ratio = of_row + logprob - jax.lax.stop_gradient(logprob)
    return policy_loss(
        log_ratio, jnp.zeros_like(log_ratio), advantages, clip_low=clip_low, clip_high=clip_high, dual_clip=None
    )


def cispo_loss(
    logprob: Float[Array, "N S"],
    old_logprob: Float[Array, "N S"],
    advantages: Float[Array, "N S"],
    *,
    clip_low: jax.Array | float,
    clip_high: jax.Array | float,
) -> tuple[Float[Array, "N S"], PolicyStats]:
    """REINFORCE with clipped importance weights (MiniMax 2025, arXiv 2506.13585, CISPO): no token loses its gradient.

    -A sg(clip(r, 1 - low, 1 + high)) log p. With `clip_low` 1 there is no lower bound, as in the paper.
    """
    log_ratio = _log_ratio(logprob, old_logprob)
    ratio = jnp.exp(log_ratio)
    weight = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return -jax.lax.stop_gradient(advantages * weight) * logprob, _stats(log_ratio, weight != ratio)


def gmpo_loss(
    logprob: Float[Array, "N S"],
    old_logprob: Float[Array, "N S"],
    advantages: Float[Array, "N S"],
    mask: Bool[Array, "N S"],
    *,
    clip_low: jax.Array | float,
    clip_high: jax.Array | float,
) -> tuple[Float[Array, "N S"], PolicyStats]:
    """Minus the mean advantage of a row times the geometric mean of its tokens' clipped ratios (arXiv 2507.20673).

    The logarithm of a ratio is clipped to [-clip_low, clip_high] where that lowers the objective, as in PPO: at the
    upper bound for A > 0, at the lower for A < 0. All tokens of a row have its loss, so that `seq_mean_token_mean` is
    the mean over rows (eq. 4 there).
    """
    old_logprob, advantages = jax.lax.stop_gradient((old_logprob, advantages))
    log_ratio = _log_ratio(logprob, old_logprob)
    bounded = jnp.clip(log_ratio, -clip_low, clip_high)
    kept = jnp.where(advantages > 0, jnp.minimum(log_ratio, bounded), jnp.maximum(log_ratio, bounded))
    tokens = jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)
    of_row = jnp.exp(jnp.sum(jnp.where(mask, kept, 0.0), axis=1, keepdims=True) / tokens)
    mean = jnp.sum(jnp.where(mask, advantages, 0.0), axis=1, keepdims=True) / tokens
    return jnp.broadcast_to(-mean * of_row, mask.shape), _stats(log_ratio, kept != log_ratio)


def sapo_loss(
    logprob: Float[Array, "N S"],
    old_logprob: Float[Array, "N S"],
    advantages: Float[Array, "N S"],
    *,
    tau_pos: jax.Array | float,
    tau_neg: jax.Array | float,
) -> tuple[Float[Array, "N S"], PolicyStats]:
    """-A (4 / tau) sigmoid(tau (r - 1)), where tau is `tau_pos` for A > 0, else `tau_neg` (arXiv 2511.20347, eq. 5-6).

    The gradient is that of -A r times 4 p (1 - p), where p is the sigmoid: 1 at r = 1, and less on both sides.
    """
    old_logprob, advantages = jax.lax.stop_gradient((old_logprob, advantages))
    log_ratio = _log_ratio(logprob, old_logprob)
    tau = jnp.where(advantages > 0, tau_pos, tau_neg)
    gate = 4.0 / tau * jax.nn.sigmoid(tau * (jnp.exp(log_ratio) - 1.0))
    return -advantages * gate, _stats(log_ratio)


def dppo_loss(
    logprob: Float[Array, "N S"],
    old_logprob: Float[Array, "N S"],
    advantages: Float[Array, "N S"],
    *,
    divergence: Literal["tv", "kl"],
    clip_low: jax.Array | float,
    clip_high: jax.Array | float,
    ratio_cap: jax.Array | float,
) -> tuple[Float[Array, "N S"], PolicyStats]:
    """-A sg(min(r, cap)) log p; 0 where a step would lead a token further outside a trust region (arXiv 2602.04879).

    The region bounds a divergence of two choices, the sampled token with probability p, before q, or another one: tv,
    |p - q|; kl, q log(q / p) + (1 - q) log((1 - q) / (1 - p)). Outside it, tokens with A > 0 and p > q (`clip_high`),
    and tokens with A < 0 and p < q (`clip_low`) are left out. `old_logprob` is that of the policy that sampled.
    """
    log_ratio, here, before = _log_ratio(logprob, old_logprob), jnp.exp(logprob), jnp.exp(old_logprob)
    if divergence == "tv":
        apart = jnp.abs(here - before)
    else:  # finite where a probability is rounded to 0 or 1
        choices = jnp.maximum(jnp.stack([here, 1.0 - here]), jnp.finfo(here.dtype).tiny)
        apart = jnp.sum(rel_entr(jnp.stack([before, 1.0 - before]), choices), axis=0)
    leading_up, leading_down = (here > before) & (apart > clip_high), (here < before) & (apart > clip_low)
    outside = jnp.where(advantages > 0, leading_up, leading_down)
    weight = jnp.where(outside, 0.0, jnp.minimum(jnp.exp(log_ratio), ratio_cap))
    return -jax.lax.stop_gradient(advantages * weight) * logprob, _stats(log_ratio, outside)


def policy_gradient_loss(
    logprob: Float[Array, "N S"], old_logprob: Float[Array, "N S"], advantages: Float[Array, "N S"]
) -> tuple[Float[Array, "N S"], PolicyStats]:
    """REINFORCE (Williams 1992): -A log p, without ratio or clip; the loss of RLOO and ReMax.

    `old_logprob` is used for the statistics only.
    """
    return -jax.lax.stop_gradient(advantages) * logprob, _stats(_log_ratio(logprob, old_logprob))


def objective(
    inputs: ObjectiveInputs, rule: Any, numbers: Mapping[str, jax.Array | float]
) -> tuple[Float[Array, "N S"], PolicyStats]:
    """The loss of each token by a member of the union `config.algo.Objective`, see `OBJECTIVES`, and its statistics.

    `numbers` are the traced numbers of the rule, by name.
    """
    return OBJECTIVES[rule.kind](inputs, rule, numbers)


def _three(i: ObjectiveInputs) -> tuple[jax.Array, jax.Array, jax.Array]:
    return i.logprob, i.old_logprob, i.advantage


def _bounds(numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: numbers[name] for name in ("clip_low", "clip_high")}


OBJECTIVES: dict[str, Callable[[ObjectiveInputs, Any, Mapping[str, Any]], tuple[jax.Array, PolicyStats]]] = {
    "ppo": lambda i, rule, n: policy_loss(*_three(i), **_bounds(n), dual_clip=rule.dual_clip),
    "gspo": lambda i, rule, n: gspo_loss(*_three(i), i.mask, **_bounds(n)),
    "gmpo": lambda i, rule, n: gmpo_loss(*_three(i), i.mask, **_bounds(n)),
    "cispo": lambda i, rule, n: cispo_loss(*_three(i), **_bounds(n)),
    "sapo": lambda i, rule, n: sapo_loss(*_three(i), tau_pos=n["tau_pos"], tau_neg=n["tau_neg"]),
    "dppo_tv": lambda i, rule, n: dppo_loss(*_three(i), **_bounds(n), divergence="tv", ratio_cap=rule.ratio_cap),
    "dppo_kl": lambda i, rule, n: dppo_loss(*_three(i), **_bounds(n), divergence="kl", ratio_cap=rule.ratio_cap),
    "policy_gradient": lambda i, rule, n: policy_gradient_loss(*_three(i)),
}
"""The function of each kind, from (inputs, rule, numbers); its settings are the member of `config.algo.Objective`."""


def sequence_log_ratio(
    logprob: Float[Array, "N S"], old_logprob: Float[Array, "N S"], mask: Bool[Array, "N S"]
) -> Float[Array, "N 1"]:
    """Mean log-ratio of each row's sampled tokens; 0 for a row without sampled tokens."""
    total = jnp.sum(jnp.where(mask, logprob - old_logprob, 0.0), axis=1, keepdims=True)
    return total / jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)


def value_loss(
    values: Float[Array, "N S"],
    old_values: Float[Array, "N S"],
    returns: Float[Array, "N S"],
    *,
    clip: jax.Array | float | None,
) -> tuple[Float[Array, "N S"], Bool[Array, "N S"]]:
    """Half the squared error of the critic, clipped as in PPO2, and where the clipped value determined it.

    0.5 max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2), where R are the targets (not whitened), v_old the values
    that the advantages were computed with, and c is `clip`; None or infinity: no clip. Gradients reach `values` only.
    """
    old_values, returns = jax.lax.stop_gradient((old_values, returns))
    reach = jnp.inf if clip is None else clip
    unclipped = jnp.square(values - returns)
    clipped = jnp.square(jnp.clip(values, old_values - reach, old_values + reach) - returns)
    return 0.5 * jnp.maximum(unclipped, clipped), clipped > unclipped


def count(mask: Bool[Array, "N S"]) -> Denominators:
    """Denominators of the rows in `mask`; add those of several microbatches leaf by leaf (or by `psum`)."""
    return Denominators(
        tokens=jnp.sum(mask, dtype=jnp.float32), sequences=jnp.sum(jnp.any(mask, axis=1), dtype=jnp.float32)
    )


def token_weights(
    mask: Bool[Array, "N S"], mode: Aggregation, denominators: Denominators, *, norm_length: jax.Array | float
) -> Float[Array, "N S"]:
    """Weights w such that sum(loss * w) over all microbatches is the minibatch's loss, however it is split.

    token_mean: every sampled token has the same weight. seq_mean_token_mean: every row has the same weight, as does
    every token inside a row. seq_mean_token_sum: the mean over rows of their token sums. seq_mean_token_sum_norm: that
    divided by `norm_length` tokens, constant during a run (Liu et al. 2025, Dr. GRPO; verl's mode of that name does not
    divide by the number of rows). Rows without sampled tokens do not count.
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
