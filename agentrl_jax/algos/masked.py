"""Sums and moments over the positions that a mask keeps.

Positions outside the mask may hold anything, infinities and NaN included.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Mean(NamedTuple):
    """A mean as the sum f32[] and the number f32[] that it is made of; parts of a batch add up leaf by leaf."""

    total: jax.Array
    number: jax.Array

    @property
    def value(self) -> jax.Array:
        """f32[]; 0 where nothing was counted."""
        return self.total / jnp.maximum(self.number, 1.0)


def mean(x: jax.Array, mask: jax.Array) -> Mean:
    """That of `x` where `mask` holds: f32[...], bool[...]."""
    return Mean(total(x, mask), count(mask))


def total(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Sum of `x` where `mask` holds: f32[...], bool[...] -> f32[]; 0 for an empty mask."""
    return jnp.sum(jnp.where(mask, x, 0.0))


def count(mask: jax.Array) -> jax.Array:
    """Number of positions where `mask` holds, f32[] (exact up to 2**24)."""
    return total(jnp.ones(mask.shape, jnp.float32), mask)


def smallest(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Least `x` where `mask` holds, f32[]; 0 for an empty mask."""
    return jnp.where(jnp.any(mask), jnp.min(jnp.where(mask, x, jnp.inf)), 0.0)


def largest(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Greatest `x` where `mask` holds, f32[]; 0 for an empty mask."""
    return -smallest(-x, mask)


def moments(x: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and unbiased variance (Bessel's n - 1) of `x` where `mask` holds.

    Args:
        x: f32[...]
        mask: bool[...], the shape of `x`.

    Returns:
        Mean f32[] and variance f32[]; both 0 for an empty mask, variance 0 for a single position.
    """
    number = count(mask)
    # Measured from the least value, a constant has a mean without rounding and a variance of exactly 0.
    origin = smallest(x, mask)
    offset = total(x - origin, mask) / jnp.maximum(number, 1.0)
    squares = total(jnp.square(x - origin - offset), mask)
    return origin + offset, squares / jnp.maximum(number - 1.0, 1.0)


def where(rows: jax.Array, new: Any, old: Any) -> Any:
    """Takes the rows of `new` where `rows` bool[B], else those of `old`, over trees whose leaves are [B, ...]."""
    return jax.tree.map(lambda a, b: jnp.where(rows.reshape(rows.shape + (1,) * (a.ndim - 1)), a, b), new, old)
