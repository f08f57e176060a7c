"""Sums and moments over the positions where a mask is true.

Values outside the mask are ignored and may be infinite or NaN. Arrays that are divided among `devices` are reduced over
all of them, see `parallel.shards.Shards`; None: the arrays are whole.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Devices(Protocol):
    """Devices that each hold a part of the positions."""

    def sum(self, tree: Any) -> Any:
        """Sum over devices."""

    def largest(self, tree: Any) -> Any:
        """Maximum over devices."""


class Mean(NamedTuple):
    """A mean stored as sum and count, so that means of several batches can be added leaf by leaf."""

    total: Float[Array, ""]
    number: Float[Array, ""]

    @property
    def value(self) -> jax.Array:
        """The mean; 0 if the count is 0."""
        return self.total / jnp.maximum(self.number, 1.0)


def mean(x: Float[Array, "*shape"], mask: Bool[Array, "*shape"]) -> Mean:
    """Mean of `x` where `mask` is true."""
    return Mean(total(x, mask), count(mask))


def total(x: Float[Array, "*shape"], mask: Bool[Array, "*shape"], devices: Devices | None = None) -> Float[Array, ""]:
    """Sum of `x` where `mask` is true; 0 for an empty mask."""
    here = jnp.sum(jnp.where(mask, x, 0.0))
    return here if devices is None else devices.sum(here)


def count(mask: Bool[Array, "*shape"], devices: Devices | None = None) -> Float[Array, ""]:
    """Number of positions where `mask` is true (exact up to 2**24)."""
    return total(jnp.ones(mask.shape, jnp.float32), mask, devices)


def smallest(
    x: Float[Array, "*shape"], mask: Bool[Array, "*shape"], devices: Devices | None = None
) -> Float[Array, ""]:
    """Minimum of `x` where `mask` is true; 0 for an empty mask."""
    return 0.0 - largest(-x, mask, devices)  # which is never -0.0


def largest(x: Float[Array, "*shape"], mask: Bool[Array, "*shape"], devices: Devices | None = None) -> Float[Array, ""]:
    """Maximum of `x` where `mask` is true; 0 for an empty mask."""
    some, found = jnp.any(mask), jnp.max(jnp.where(mask, x, -jnp.inf))
    if devices is not None:
        some, found = devices.largest(some.astype(jnp.int32)) > 0, devices.largest(found)
    return jnp.where(some, found, 0.0)


def moments(
    x: Float[Array, "*shape"], mask: Bool[Array, "*shape"], devices: Devices | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean and unbiased variance (Bessel's n - 1) of `x` where `mask` is true.

    Both are 0 for an empty mask; the variance of a single position is 0.
    """
    number = count(mask, devices)
    # Subtracting the minimum first gives constant inputs an exact mean and a variance of exactly 0.
    origin = smallest(x, mask, devices)
    offset = total(x - origin, mask, devices) / jnp.maximum(number, 1.0)
    squares = total(jnp.square(x - origin - offset), mask, devices)
    return origin + offset, squares / jnp.maximum(number - 1.0, 1.0)


def where(rows: Bool[Array, " B"], new: Any, old: Any) -> Any:
    """Rows of `new` where `rows` is true, else of `old`; both are trees with leaves [B, ...]."""
    return jax.tree.map(lambda a, b: jnp.where(rows.reshape(rows.shape + (1,) * (a.ndim - 1)), a, b), new, old)
