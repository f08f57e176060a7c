"""Over which mesh axes of a `jax.shard_map` the devices may hold different values of an array."""

from collections.abc import Iterable

import jax


def varying(x: jax.Array) -> frozenset[str]:
    """The axes over which `x` may differ; none outside of `jax.shard_map`."""
    return jax.typeof(x).manual_axis_type.varying


def as_varying(x: jax.Array, axes: Iterable[str]) -> jax.Array:
    """`x`, marked as varying over these axes too, so that loops and gradients treat it as such."""
    missing = tuple(axis for axis in axes if axis not in varying(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x
