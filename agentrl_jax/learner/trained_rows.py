"""What every device knows of the rows of all devices, to divide them into minibatches.

Shapes: `n` rows of a device, with `K` response positions; `A` rows of all devices, of which `N` are trained on.
"""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from agentrl_jax.parallel.shards import Shards


class TrainedRows(struct.PyTreeNode):
    """The rows to train on. Rows are numbered in the order of their episodes, over all devices."""

    order: Int[Array, " N"]
    """Numbers of these rows, those without sampled tokens last, so that whole microbatches of them can be skipped."""
    length: Int[Array, " A"]
    """Number of tokens of each row up to its last trained one; 0 if there is none."""
    tokens: Int[Array, " A"]
    """Number of trained tokens of each row."""


def trained_rows(mask: Bool[Array, "n K"], position: Int[Array, "n K"], most: int, shards: Shards) -> TrainedRows:
    """Which rows to train on, at most `most`; `mask` has the tokens to train on of this device's rows."""
    length = jnp.max(jnp.where(mask, position + 1, 0), axis=1)
    length, tokens = shards.all_gather_blocks((length, jnp.sum(mask, axis=1, dtype=jnp.int32)))
    return TrainedRows(jnp.argsort(tokens == 0, stable=True)[:most].astype(jnp.int32), length, tokens)
