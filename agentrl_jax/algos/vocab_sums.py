"""Sums and maxima over the vocabulary, whose tokens may be divided among the devices of a mesh axis."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def total(x: Float[Array, "*shape V"], axis_name: str) -> Float[Array, "*shape"]:
    """Sum over the last axis, and over the devices of the mesh axis; empty: no axis."""
    sums = jnp.sum(x, axis=-1)
    return jax.lax.psum(sums, axis_name) if axis_name else sums


def highest(x: Float[Array, "*shape V"], axis_name: str) -> Float[Array, "*shape"]:
    """Maximum over the last axis, and over the devices of the mesh axis; empty: no axis. It has no gradient."""
    largest = jnp.max(jax.lax.stop_gradient(x), axis=-1)
    return jax.lax.pmax(largest, axis_name) if axis_name else largest
