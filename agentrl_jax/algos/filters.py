"""Which groups are trained on: StarPO-S's uncertainty filter and the nucleus rule of RAGEN v2.

Letters: `Gr` groups of `M` members. Kept groups keep all their members.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from agentrl_jax.algos.advantages import group_mean, group_spread

ScoreKind = Literal["std", "mean"]

_ZERO_SCORE = 1e-10
# 0.29 * 100 is 28.999999999999996 in floating point and means 29.
_RATIO_ROUNDING = 1e-9


def group_scores(returns: jax.Array, intact: jax.Array, kind: ScoreKind) -> jax.Array:
    """One score per group to rank by.

    Args:
        returns: f32[Gr, M], raw return plus penalty, not normalised.
        intact: bool[Gr, M] members that count; a group without any scores 0.
        kind: std: unbiased standard deviation, exactly 0 for equal returns and for a group of one (the uncertainty of
            StarPO-S, arXiv 2504.20073 section 4.2). mean: mean return.

    Returns:
        f32[Gr]

    Raises:
        ValueError: `kind` is neither of the two.
    """
    if kind == "std":
        return group_spread(returns, intact)[1]
    if kind == "mean":
        return group_mean(returns, intact)
    raise ValueError(f"kind is {kind!r}; expected std or mean")


def kept_groups(num_groups: int, ratio: float) -> int:
    """How many groups a filter ratio keeps: the whole part of ratio * num_groups; 0 is for the caller to refuse."""
    return int(ratio * num_groups + _RATIO_ROUNDING)


def top_groups(scores: jax.Array, k: int, *, largest: bool = True) -> jax.Array:
    """The k groups with the largest (or smallest) scores, for a gather with static shapes.

    Args:
        scores: f32[Gr]
        k: groups to keep, static.
        largest: rank from the largest score down, else from the smallest up.

    Returns:
        i32[k], indices in ascending order. Of equal scores the lower index is kept; NaN ranks behind every number.

    Raises:
        ValueError: k is not in 1..Gr.
    """
    if not 1 <= k <= scores.shape[0]:
        raise ValueError(f"k is {k}; expected 1 to {scores.shape[0]}, the number of groups")
    order = jnp.argsort(-scores if largest else scores, stable=True)
    return jnp.sort(order[:k]).astype(jnp.int32)


def top_p_mask(
    scores: jax.Array, *, value: jax.Array | float, include_zero: bool, eps: jax.Array | float = 0.01
) -> jax.Array:
    """The linear nucleus rule of RAGEN v2 (`top_p`, linear).

    Groups are taken from the largest score down until their sum reaches value * (sum of all scores) - eps. Only
    positive scores are taken; if the threshold is not positive, nothing is kept and the caller skips the step. With
    value >= 1 every group stays.

    Args:
        scores: f32[Gr]
        value: share of the total score to cover, above 0.
        include_zero: False drops groups with |score| <= 1e-10 first, which matters for value >= 1 only.
        eps: slack of the threshold, at least 0.

    Returns:
        bool[Gr]; never true for a NaN score.
    """
    eligible = ~jnp.isnan(scores)
    if not include_zero:
        eligible &= jnp.abs(scores) > _ZERO_SCORE
    known = jnp.where(eligible, scores, 0.0)
    order = jnp.argsort(-known, stable=True)
    ranked = known[order]
    covered = jnp.cumsum(ranked)
    threshold = value * covered[-1] - eps
    taken = (jnp.roll(covered, 1).at[0].set(0.0) < threshold) & (ranked > 0)
    nucleus = jnp.zeros_like(eligible).at[order].set(taken)
    return jnp.where(value >= 1.0, eligible, nucleus)
