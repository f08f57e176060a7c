"""Chooses tokens of a minibatch by their entropy or covariance, and treats their losses apart.

Shapes: `N` rows of `S` positions, of which a device may hold a part. The settings are `config.token_rules`.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from agentrl_jax.algos import masked
from agentrl_jax.algos.losses import MAX_LOG_RATIO
from agentrl_jax.config.token_rules import TokenRule

Numbers = Mapping[str, jax.Array | float]

_SMOOTH = 1e-3
"""Nats below which a distance is smoothed: the published |x| would give rounding the gradient of a whole change."""


def chosen_tokens(
    rule: TokenRule,
    numbers: Numbers,
    mask: Bool[Array, "N S"],
    *,
    entropy: Float[Array, "N S"] | None = None,
    logprob: Float[Array, "N S"] | None = None,
    advantage: Float[Array, "N S"] | None = None,
    draws: UInt32[Array, "N S"] | None = None,
    devices: masked.Devices | None = None,
) -> Bool[Array, "N S"]:
    """The sampled tokens that a rule chooses among those in `mask`.

    top_entropy reads `entropy`, the others `logprob` and `advantage`, clip_cov also random numbers, `draws`. Of equal
    tokens at the last place all are chosen.
    """
    number = masked.count(mask, devices)
    most = jnp.maximum(jnp.round(numbers["share"] * number), 1).astype(jnp.int32)
    if rule.kind == "top_entropy":
        assert entropy is not None
        return largest(_ordered(entropy), mask, most, devices)
    assert logprob is not None
    assert advantage is not None
    found = covariance(logprob, advantage, mask, devices)
    if rule.kind == "kl_cov":
        return largest(_ordered(found), mask, most, devices)
    assert draws is not None
    between = mask & (found >= numbers["low"]) & (found <= numbers["high"])
    return largest(draws, between, most, devices)


def changed_loss(
    loss: Float[Array, "N S"],
    chosen: Bool[Array, "N S"],
    logprob: Float[Array, "N S"],
    old_logprob: Float[Array, "N S"],
    rule: TokenRule,
    numbers: Numbers,
) -> Float[Array, "N S"]:
    """The losses of tokens, of which some were chosen; `old_logprob` are those from before the update."""
    if rule.kind == "kl_cov":
        change = jnp.clip(logprob - old_logprob, -MAX_LOG_RATIO, MAX_LOG_RATIO)
        distance = jnp.sqrt(jnp.square(change) + _SMOOTH**2) - _SMOOTH
        return loss + jnp.where(chosen, numbers["coef"] * distance, 0.0)
    return jnp.where(chosen == (rule.kind == "top_entropy"), loss, 0.0)


def covariance(
    logprob: Float[Array, "N S"],
    advantage: Float[Array, "N S"],
    mask: Bool[Array, "N S"],
    devices: masked.Devices | None = None,
) -> Float[Array, "N S"]:
    """(log p - mean log p) (A - mean A) of each token, with means over the mask; 0 outside it (Cui et al. 2025).

    Its mean is the covariance, to which the change of the entropy in a step is proportional.
    """
    number = jnp.maximum(masked.count(mask, devices), 1.0)
    apart = [x - masked.total(x, mask, devices) / number for x in (logprob, advantage)]
    return jnp.where(mask, apart[0] * apart[1], 0.0)


def largest(
    keys: UInt32[Array, "N S"], mask: Bool[Array, "N S"], number: Int[Array, ""], devices: masked.Devices | None = None
) -> Bool[Array, "N S"]:
    """Where the `number` largest keys in the mask are, exactly, on all devices together; all where there are fewer.

    The bits of the smallest of them are found one by one from the highest, each by one count.
    """
    number = jnp.minimum(number, masked.count(mask, devices).astype(jnp.int32))

    def with_bit(bit, least):
        higher = least | (jnp.uint32(1) << (31 - bit).astype(jnp.uint32))
        there = masked.count(mask & (keys >= higher), devices)
        return jnp.where(there >= number, higher, least)

    return mask & (keys >= jax.lax.fori_loop(0, 32, with_bit, jnp.uint32(0)))


def _ordered(x: Float[Array, "N S"]) -> UInt32[Array, "N S"]:
    """Keys in the order of float32 numbers."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32) + 0.0, jnp.uint32)  # -0.0 as 0.0
    return jnp.where(bits >> 31, ~bits, bits | jnp.uint32(1 << 31))
