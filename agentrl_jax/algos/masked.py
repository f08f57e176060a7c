"""Sums and moments over the positions where a mask is true.

Values outside the mask are ignored and may be infinite or NaN.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Mean(NamedTuple):
    """A mean stored as sum f32[] and count f32[], so that means of several batches can be added leaf by leaf."""

    total: jax.Array
    number: jax.Array

    @property
    def value(self) -> jax.Array:
        """The mean, f32[]; 0 if the count is 0."""
        return self.total / jnp.maximum(self.number, 1.0)


def mean(x: jax.Array, mask: jax.Array) -> Mean:
    """Mean of `x` f32[...] where `mask` bool[...] is true."""
    return Mean(total(x, mask), count(mask))


def total(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Sum f32[] of `x` f32[...] where `mask` bool[...] is true; 0 for an empty mask."""
    return jnp.sum(jnp.where(mask, x, 0.0))


def count(mask: jax.Array) -> jax.Array:
    """Number of positions where `mask` is true, f32[] (exact up to 2**24)."""
    return total(jnp.ones(mask.shape, jnp.float32), mask)


def smallest(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Minimum f32[] of `x` where `mask` is true; 0 for an empty mask."""
    return jnp.where(jnp.any(mask), jnp.min(jnp.where(mask, x, jnp.inf)), 0.0)


def largest(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Maximum f32[] of `x` where `mask` is true; 0 for an empty mask."""
    return -smallest(-x, mask)


def moments(x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and unbiased variance (Bessel's n - 1) of `x` where `mask` is true.

    Args:
        x: f32[...]
        mask: bool[...], same shape as `x`.

    Returns:
        Mean f32[] and variance f32[]; both 0 for an empty mask, variance 0 for a single position.
    """
    number = count(mask)
    # Subtracting the minimum first gives constant inputs an exact mean and a variance of exactly 0.
    origin = smallest(x, mask)
    offset = total(x - origin, mask) / jnp.maximum(number, 1.0)
    squares = total(jnp.square(x - origin - offset), mask)
    return origin + offset, squares / jnp.maximum(number - 1.0, 1.0)


def where(rows: jax.Array, new: Any, old: Any) -> Any:
    """Rows of `new` where `rows` bool[B] is true, else of `old`; both are trees with leaves [B, ...]."""
    return jax.tree.map(lambda a, b: jnp.where(rows.reshape(rows.shape + (1,) * (a.ndim - 1)), a, b), new, old)
