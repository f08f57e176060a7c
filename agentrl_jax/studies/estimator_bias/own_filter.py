"""The gradient of a batch of two groups of which a filter of the user keeps some, in expectation.

Dimensions: `C` groups of `M`; `K` classes of groups with the same returns, between which a filter cannot tell.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from agentrl_jax.algos.filters import FilterInputs, kept_groups
from agentrl_jax.config.filters import OwnFilter
from agentrl_jax.errors import BadValue


def moments(
    rule: OwnFilter,
    returns: Float[np.ndarray, "C M"],
    chances: Float[np.ndarray, " C"],
    gradients: Float[np.ndarray, "C P"],
) -> tuple[Float[np.ndarray, " P"], float, float]:
    """Mean and mean squared length of the gradient of two groups, and how often an update keeps any of them.

    Groups are in both orders; the gradient is the mean over those that are kept, and batches that keep none are left
    out, as a learner skips their update.

    Raises:
        ValueError: the filter reads more than returns, or keeps no group of any two.
    """
    distinct, number = np.unique(np.round(np.sort(returns, axis=1), 12), axis=0, return_inverse=True)
    number = number.reshape(-1)
    kept = _kept(rule, distinct)
    of_class = np.bincount(number, weights=chances, minlength=len(distinct))
    sums = np.stack([np.bincount(number, weights=chances * x, minlength=len(distinct)) for x in gradients.T], axis=1)
    squares = np.bincount(number, weights=chances * np.square(gradients).sum(axis=1), minlength=len(distinct))
    count = kept.sum(axis=2)
    any_kept = float(of_class @ (count > 0) @ of_class)
    if any_kept == 0:
        raise BadValue.of("--own", rule.kind, "which keeps no group of any two; returns are from -0.2 to 1.25 here")
    first, second = (np.where(count > 0, kept[:, :, i] / np.maximum(count, 1), 0.0) for i in (0, 1))
    mean = sums.T @ (first @ of_class) + sums.T @ (of_class @ second)
    square = squares @ (np.square(first) @ of_class) + squares @ (of_class @ np.square(second))
    square += 2 * np.einsum("ab,ap,bp->", first * second, sums, sums)
    return mean / any_kept, float(square) / any_kept, any_kept


def _kept(rule: OwnFilter, distinct: Float[np.ndarray, "K M"]) -> Bool[np.ndarray, "K K 2"]:
    """Which of two groups are kept, for all pairs of classes."""

    def of_pair(first, second, other):
        returns = jnp.stack([first, second]).astype(jnp.float32)
        other = jnp.broadcast_to(other, returns.shape)
        inputs = FilterInputs(returns, other, 3 + other, jnp.ones(returns.shape, bool))
        return kept_groups(inputs, rule, rule.numbers)

    def of_all(other):
        rows = jnp.asarray(distinct)
        found = jax.vmap(lambda a: jax.vmap(lambda b: of_pair(a, b, other))(rows))(rows)
        return np.asarray(found)

    kept, again = (of_all(jnp.float32(other)) for other in ([[0], [9]], [[9], [0]]))
    if not np.array_equal(kept, again):
        raise BadValue.of("--own", rule.kind, "which reads entropies or lengths; only filters of returns are measured")
    return kept
