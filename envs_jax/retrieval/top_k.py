"""The best passages on the device."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32


class FoundOnDevice(NamedTuple):
    """The passages for one query, the best first; vmapped, with a leading axis.

    Attributes:
        ids: i32[k] ids of passages; -1 beyond `found`.
        scores: f32[k] their scores; 0 beyond `found`.
        found: i32 number of passages that were found.
    """

    ids: Int32[Array, " K"]
    scores: Float32[Array, " K"]
    found: Int32[Array, ""]


def exact_top_k(scores: Float32[Array, " N"], known: Bool[Array, ""], k: int) -> FoundOnDevice:
    """The k highest scores, of equal ones the lower id first; nothing for a query that is not `known`."""
    size = min(k, len(scores))
    values, ids = lax.top_k(scores, size)
    values, ids = jnp.where(known, values, 0), jnp.where(known, ids, -1)
    return FoundOnDevice(
        ids=jnp.pad(ids, (0, k - size), constant_values=-1),
        scores=jnp.pad(values, (0, k - size)),
        found=jnp.where(known, size, 0),
    )
