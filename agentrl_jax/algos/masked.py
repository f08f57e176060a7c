"""Sums and moments over the positions that a mask keeps, on one device or over a mapped axis.

With `axis_name` (the name of a `jax.shard_map` or `jax.vmap` axis) every reduction covers all members of that axis.
Positions outside the mask may hold anything, infinities and NaN included.
"""

import jax
import jax.numpy as jnp


def total(x: jax.Array, mask: jax.Array, *, axis_name: str | None = None) -> jax.Array:
    """Sum of `x` where `mask` holds: f32[...], bool[...] -> f32[]; 0 for an empty mask."""
    here = jnp.sum(jnp.where(mask, x, 0.0))
    return here if axis_name is None else jax.lax.psum(here, axis_name)


def count(mask: jax.Array, *, axis_name: str | None = None) -> jax.Array:
    """Number of positions where `mask` holds, f32[] (exact up to 2**24)."""
    return total(jnp.ones(mask.shape, jnp.float32), mask, axis_name=axis_name)


def smallest(x: jax.Array, mask: jax.Array, *, axis_name: str | None = None) -> jax.Array:
    """Least `x` where `mask` holds, f32[]; 0 for an empty mask."""
    here = jnp.min(jnp.where(mask, x, jnp.inf))
    everywhere = here if axis_name is None else jax.lax.pmin(here, axis_name)
    return jnp.where(count(mask, axis_name=axis_name) > 0, everywhere, 0.0)


def largest(x: jax.Array, mask: jax.Array, *, axis_name: str | None = None) -> jax.Array:
    """Greatest `x` where `mask` holds, f32[]; 0 for an empty mask."""
    return -smallest(-x, mask, axis_name=axis_name)


def moments(x: jax.Array, mask: jax.Array, *, axis_name: str | None = None) -> tuple[jax.Array, jax.Array]:
    """Mean and unbiased variance (Bessel's n - 1) of `x` where `mask` holds.

    Args:
        x: f32[...]
        mask: bool[...], the shape of `x`.
        axis_name: mapped axis to reduce over as well.

    Returns:
        Mean f32[] and variance f32[]; both 0 for an empty mask, variance 0 for a single position.
    """
    number = count(mask, axis_name=axis_name)
    # Measured from the least value, a constant has a mean without rounding and a variance of exactly 0.
    origin = smallest(x, mask, axis_name=axis_name)
    offset = total(x - origin, mask, axis_name=axis_name) / jnp.maximum(number, 1.0)
    squares = total(jnp.square(x - origin - offset), mask, axis_name=axis_name)
    return origin + offset, squares / jnp.maximum(number - 1.0, 1.0)
