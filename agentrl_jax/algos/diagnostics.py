"""Metrics of an iteration (RAGEN's list), each over its own mask.

A metric over an empty mask is 0; the learner reports the numbers of tokens and rows separately.

Shapes: `Gr` groups of `M` episodes.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt

from agentrl_jax.algos import masked
from agentrl_jax.algos.groups import STD_FLOOR, center_and_std, group_mean
from agentrl_jax.algos.masked import Devices, Mean

_VARIANCE_EPS = 1e-5


def group_means(returns: Float[Array, "Gr M"], valid: Bool[Array, "Gr M"]) -> dict[str, Mean]:
    """Statistics of the returns inside groups, over the episodes in `valid`; groups without any are left out.

    in_group_std (unbiased), in_group_max and in_group_mean are means over groups; a falling in_group_std is the first
    sign of a collapse. If M > 1, zero_std_share is the share of groups whose standard deviation is at most 1e-6:
    group-relative estimators learn nothing from them.
    """
    std = center_and_std(returns, valid)[1]
    known = jnp.any(valid, axis=1)
    per_group = {
        "in_group_std": std,
        "in_group_max": jnp.max(jnp.where(valid, returns, -jnp.inf), axis=1),
        "in_group_mean": group_mean(returns, valid),
        "zero_std_share": (std <= STD_FLOOR).astype(jnp.float32),
    }
    if returns.shape[1] == 1:
        del per_group["zero_std_share"]
    return {name: masked.mean(x, known) for name, x in per_group.items()}


def repeated(response_hash: UInt[Array, "Gr M 2"], valid: Bool[Array, "Gr M"]) -> Mean:
    """Share of valid episodes whose responses equal those of another valid episode of their group exactly.

    `response_hash` identifies all responses of an episode.
    """
    both = valid[:, :, None] & valid[:, None] & ~jnp.eye(valid.shape[1], dtype=bool)
    equal = jnp.all(response_hash[:, :, None] == response_hash[:, None], axis=-1) & both
    return masked.mean(jnp.any(equal, axis=2).astype(jnp.float32), valid)


def masked_stats(
    x: Float[Array, "*shape"], mask: Bool[Array, "*shape"], devices: Devices | None = None
) -> dict[str, Float[Array, ""]]:
    """Mean, max and min of `x` where `mask` is true."""
    return {
        "mean": masked.moments(x, mask, devices)[0],
        "max": masked.largest(x, mask, devices),
        "min": masked.smallest(x, mask, devices),
    }


def explained_variance(
    values: Float[Array, "N S"],
    returns: Float[Array, "N S"],
    mask: Bool[Array, "N S"],
    devices: Devices | None = None,
) -> Float[Array, ""]:
    """1 - var(returns - values) / (var(returns) + 1e-5) over the mask; 0 for fewer than two positions.

    1 is a perfect critic, 0 one that predicts the mean only, below 0 one that is worse than that.
    """
    _, residual = masked.moments(returns - values, mask, devices)
    _, variance = masked.moments(returns, mask, devices)
    enough = masked.count(mask, devices) >= 2
    return jnp.where(enough, 1.0 - residual / (variance + _VARIANCE_EPS), 0.0)
