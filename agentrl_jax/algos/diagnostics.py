"""Metrics of an iteration (RAGEN's list), each over its own mask.

Every function returns scalars f32[]. A metric over an empty mask is 0; the learner reports the numbers of tokens and
rows separately.
"""

import jax
import jax.numpy as jnp

from agentrl_jax.algos import masked
from agentrl_jax.algos.groups import STD_FLOOR, center_and_std, group_mean
from agentrl_jax.algos.masked import Mean

_VARIANCE_EPS = 1e-5


def group_means(returns: jax.Array, valid: jax.Array) -> dict[str, Mean]:
    """Statistics of returns inside groups; a falling standard deviation is the first sign of a collapse.

    Args:
        returns: f32[Gr, M]
        valid: bool[Gr, M] episodes that count; a group without any does not count either.

    Returns:
        in_group_std (unbiased), in_group_max and in_group_mean, each the mean over groups. If M > 1, also
        zero_std_share, the share of groups whose standard deviation is at most 1e-6: group-relative estimators learn
        nothing from them.
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


def group_metrics(returns: jax.Array, valid: jax.Array) -> dict[str, jax.Array]:
    """The values f32[] of `group_means`."""
    return {name: x.value for name, x in group_means(returns, valid).items()}


def repeated(code: jax.Array, valid: jax.Array) -> Mean:
    """Share of episodes whose responses equal those of another episode of their group exactly.

    Args:
        code: u32[Gr, M, 2] hash of all responses of an episode.
        valid: bool[Gr, M] episodes that count.
    """
    both = valid[:, :, None] & valid[:, None] & ~jnp.eye(valid.shape[1], dtype=bool)
    alike = jnp.all(code[:, :, None] == code[:, None], axis=-1) & both
    return masked.mean(jnp.any(alike, axis=2).astype(jnp.float32), valid)


def masked_stats(x: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
    """Mean, max and min of `x` f32[...] where `mask` bool[...] is true."""
    return {
        "mean": masked.moments(x, mask)[0],
        "max": masked.largest(x, mask),
        "min": masked.smallest(x, mask),
    }


def explained_variance(values: jax.Array, returns: jax.Array, mask: jax.Array) -> jax.Array:
    """1 - var(returns - values) / (var(returns) + 1e-5) over the mask.

    1 is a perfect critic, 0 one that predicts the mean only, below 0 one that is worse than that.

    Args:
        values: f32[N, S]
        returns: f32[N, S]
        mask: bool[N, S]

    Returns:
        f32[]; 0 for fewer than two positions.
    """
    _, residual = masked.moments(returns - values, mask)
    _, variance = masked.moments(returns, mask)
    enough = masked.count(mask) >= 2
    return jnp.where(enough, 1.0 - residual / (variance + _VARIANCE_EPS), 0.0)
