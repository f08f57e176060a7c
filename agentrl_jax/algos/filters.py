"""Selects the episodes to train on: StarPO-S's uncertainty filter, the rules of RAGEN v2, and choice within groups.

Shapes: `Gr` groups of `M` episodes. Kept groups keep all their episodes; `within_groups` chooses among those.
`top_groups` keeps a fixed number of groups, so that it can return indices for a gather; the other rules return a mask.

Scores that differ by a share of at most 2e-6 count as equal, and of equal ones the first is chosen: how a sum is
rounded depends on the shape of the batch.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, assert_never

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.algos.groups import STD_FLOOR, center_and_std, group_mean
from agentrl_jax.config.filters import ScoreKind
from agentrl_jax.errors import BadValue

Rule = Literal["top_p", "top_p_softmax", "top_k", "min_p"]

_ZERO_SCORE = 1e-10
_TIE = 2e-6  # 16 units in the last place of a float32
_TIE_OF_VARIANCES = 2e-5  # of differences of scores, which are smaller than these


def group_scores(values: Float[Array, "Gr M"], valid: Bool[Array, "Gr M"], kind: ScoreKind) -> Float[Array, " Gr"]:
    """One score per group to rank by, over the episodes in `valid`; NaN, which ranks last, without any.

    std and entropy_std: unbiased standard deviation, exactly 0 for equal values and for a group of one (of returns, the
    uncertainty of StarPO-S, arXiv 2504.20073 section 4.2; 0 up to `STD_FLOOR`, where advantages are 0 too). mean,
    entropy and length: the mean. The values of an episode are for std and mean its return plus penalty, not normalized;
    for entropy and entropy_std the mean entropy of its tokens; for length its number of sampled tokens.
    """
    found = center_and_std(values, valid)[1] if kind in ("std", "entropy_std") else group_mean(values, valid)
    if kind == "std":
        found = jnp.where(found <= STD_FLOOR, 0.0, found)
    return jnp.where(jnp.any(valid, axis=1), found, jnp.nan)


def top_groups(scores: Float[Array, " Gr"], k: int, *, largest: bool = True) -> Int[Array, " k"]:
    """Indices of the k groups with the largest (or smallest) scores in ascending order, for a gather.

    Of equal scores the lower index is kept; NaN ranks last. Raises ValueError if k is not in 1..Gr.
    """
    if not 1 <= k <= scores.shape[0]:
        raise BadValue.of("k", k, f"expected 1 to {scores.shape[0]}, the number of groups")
    order = _order(-scores if largest else scores)
    return jnp.sort(order[:k]).astype(jnp.int32)


class FilterInputs(struct.PyTreeNode):
    """What a filter reads: numbers of the episodes of all devices."""

    returns: Float[Array, "Gr M"]
    """Penalties included, not normalized."""
    entropy: Float[Array, "Gr M"]
    """Mean entropy of the episode's tokens in nats, estimated from those that were sampled."""
    length: Float[Array, "Gr M"]
    """Number of sampled tokens."""
    valid: Bool[Array, "Gr M"]
    """Episodes that count."""


def kept_groups(inputs: FilterInputs, rule: Any, numbers: Mapping[str, jax.Array | float]) -> Bool[Array, " Gr"]:
    """The groups that a member of the union `config.filters.Filter` keeps, by the function of its kind in `FILTERS`.

    `numbers` are the traced numbers of the rule, by name.
    """
    return FILTERS[rule.kind](inputs, rule, numbers)


def _scores(inputs: FilterInputs, rule: Any) -> Float[Array, " Gr"]:
    if rule.by in ("std", "mean"):
        return group_scores(inputs.returns, inputs.valid, rule.by)
    values = inputs.length if rule.by == "length" else inputs.entropy
    return group_scores(values, inputs.valid & (inputs.length > 0), rule.by)


def _fraction(inputs: FilterInputs, rule: Any, numbers: Mapping[str, Any]) -> Bool[Array, " Gr"]:
    groups = len(inputs.valid)
    kept = top_groups(_scores(inputs, rule), rule.kept(groups), largest=rule.largest)
    return jnp.zeros(groups, bool).at[kept].set(True)


def _chosen(inputs: FilterInputs, rule: Any, numbers: Mapping[str, Any]) -> Bool[Array, " Gr"]:
    value = numbers["k" if rule.kind == "top_k" else "p"]
    options = {"largest": rule.largest, "include_zero": rule.include_zero}
    return chosen_groups(_scores(inputs, rule), rule.kind, value=value, **options)


FILTERS: dict[str, Callable[[FilterInputs, Any, Mapping[str, Any]], Bool[Array, " Gr"]]] = {
    "none": lambda inputs, rule, numbers: jnp.ones(len(inputs.valid), bool),
    "fraction": _fraction,
    "top_p": _chosen,
    "top_p_softmax": _chosen,
    "top_k": _chosen,
    "min_p": _chosen,
}
"""The function of each kind, from (inputs, rule, numbers); its settings are the member of `config.filters.Filter`."""


def chosen_groups(
    scores: Float[Array, " Gr"],
    rule: Rule,
    *,
    value: jax.Array | float,
    largest: bool,
    include_zero: bool,
    eps: jax.Array | float = 0.01,
) -> Bool[Array, " Gr"]:
    """The groups that a rule of RAGEN v2 keeps; may be none. NaN scores are never kept.

    top_p: from the best group down until the scores add up to value * (sum of all) - eps. Only positive scores are
    kept; a threshold that is not positive keeps nothing. A value of 1 or more keeps every group. top_p_softmax: the
    fewest best groups whose softmax of scores reaches `value`, at least one; the raw scores are the logits, so small
    differences have little effect. top_k: the best max(1, floor(value)) groups. min_p: scores of at least
    value * (the largest), or of at most (the smallest) / value.

    `value` is above 0, `eps` at least 0. The best groups have the largest scores, or, if `largest` is false, the
    smallest. `include_zero` False drops groups with |score| <= 1e-10 before the rule is applied. Raises ValueError for
    top_p with the smallest scores.
    """
    if rule == "top_p" and not largest:
        raise BadValue.of("largest", False, "but top_p covers a sum of scores from the largest down; use true")
    eligible = ~jnp.isnan(scores)
    if not include_zero:
        eligible &= jnp.abs(scores) > _ZERO_SCORE
    known = jnp.where(eligible, scores, 0.0)
    merit = jnp.where(eligible, known if largest else -known, -jnp.inf)
    order = _order(-merit)
    if rule == "top_p":
        covered = jnp.cumsum(known[order])
        before = jnp.roll(covered, 1).at[0].set(0.0)
        threshold = value * covered[-1] - eps
        taken = (before < threshold - _TIE * jnp.abs(threshold)) & (known[order] > 0)
        return jnp.where(value >= 1.0, eligible, _mask_of(taken, order)) & eligible
    if rule == "top_p_softmax":
        share = jnp.where(eligible, jnp.exp(merit - jnp.max(merit)), 0.0)
        covered = jnp.cumsum((share / jnp.maximum(jnp.sum(share), _ZERO_SCORE))[order])
        before = jnp.roll(covered, 1).at[0].set(0.0)
        return _mask_of(before < value * (1 - _TIE), order) & eligible
    if rule == "top_k":
        return _mask_of(jnp.arange(scores.shape[0]) < jnp.maximum(jnp.floor(value), 1), order) & eligible
    if rule == "min_p":
        best = jnp.max(merit) if largest else -jnp.max(merit)
        bound = value * best if largest else best / value
        slack = _TIE * jnp.abs(bound)
        return eligible & (known >= bound - slack if largest else known <= bound + slack)
    assert_never(rule)


def within_groups(scores: Float[Array, "Gr M"], valid: Bool[Array, "Gr M"], keep: int) -> Bool[Array, "Gr M"]:
    """The `keep` episodes of each group with the largest variance of scores: some of the lowest and of the highest.

    Among all splits into lowest and highest, the one that maximizes the variance of the kept scores is chosen (Xu et
    al. 2025, PODS; RAGEN v2's `within_group`); of equal splits, the one with the fewest lowest episodes. Episodes that
    are not `valid` are kept only if there are too few others. Raises ValueError if `keep` is not in 1..M.
    """
    group_size = scores.shape[1]
    if not 1 <= keep <= group_size:
        raise BadValue.of("keep", keep, f"expected 1 to {group_size}, the number of episodes of a group")
    order = jax.vmap(_order)(jnp.where(valid, scores, jnp.inf))
    rank = jnp.zeros_like(order).at[jnp.arange(len(order))[:, None], order].set(jnp.arange(group_size))
    number = jnp.sum(valid, axis=1)[:, None, None]
    lowest = jnp.arange(keep + 1)[:, None]
    # [Gr, splits, M]: the lowest episodes by rank, and the highest of those that count.
    taken = (rank[:, None] < lowest) | ((rank[:, None] >= number - (keep - lowest)) & (rank[:, None] < number))
    counted = taken & valid[:, None]
    mean = jnp.sum(jnp.where(counted, scores[:, None], 0.0), axis=2) / jnp.maximum(jnp.sum(counted, axis=2), 1)
    distance = jnp.where(counted, jnp.square(scores[:, None] - mean[..., None]), 0.0)
    spread = jnp.sum(distance, axis=2)
    best = jnp.argmax(spread >= (1 - _TIE_OF_VARIANCES) * jnp.max(spread, axis=1, keepdims=True), axis=1)
    chosen = jnp.take_along_axis(taken, best[:, None, None], axis=1)[:, 0]
    return jnp.where(number[:, 0] < keep, rank < keep, chosen)


def _order(values: Float[Array, " N"]) -> Int[Array, " N"]:
    """Indices in ascending order of the values; equal ones in the order in which they are given, NaN last."""
    order = jnp.argsort(values, stable=True)
    below, above = jnp.roll(values[order], 1), values[order]
    larger = ~(above - below <= _TIE * jnp.minimum(jnp.abs(below), jnp.abs(above)))
    return order[jnp.lexsort((order, jnp.cumsum(larger)))]


def _mask_of(taken: jax.Array, order: jax.Array) -> jax.Array:
    """Reorders a mask of the sorted groups back to a mask of the groups."""
    return jnp.zeros(order.shape, bool).at[order].set(taken)
