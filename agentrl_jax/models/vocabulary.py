"""The vocabulary of the output layer: whole on each device, or divided among the devices of a mesh axis."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

_NEVER = -1e30
"""Logit of what is no token; finite, so that it times a probability of 0 is 0."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Which logits a device computes: all, or its share of those of all tokens on the devices of a mesh axis.

    Device i of n has the tokens i, i + n, i + 2 n, ... of the vocabulary, and logits for what would come after the last
    one if n does not divide the size. No device then needs the whole output matrix (vocabulary-parallel loss, Shoeybi
    et al. 2019).
    """

    size: int
    axis_name: str = ""
    """Axis of a `jax.shard_map`, whose devices have different tokens to score; empty: each computes all logits."""

    def all_gather(self, tree: Any) -> Any:
        """Rows of all devices of the axis, in their order: leaves [M, ...] -> [n M, ...]."""
        if not self.axis_name:
            return tree
        return jax.tree.map(lambda x: jax.lax.all_gather(x, self.axis_name, tiled=True), tree)

    def own(self, tree: Any) -> Any:
        """This device's rows, the inverse of `all_gather`."""
        if not self.axis_name:
            return tree
        devices, index = jax.lax.axis_size(self.axis_name), jax.lax.axis_index(self.axis_name)
        return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x.reshape(devices, -1), index, 0, False), tree)

    def any(self, x: Bool[Array, "..."]) -> Bool[Array, ""]:
        """Whether `x` is true on a device of the axis; a branch with collectives must be entered by all of them."""
        found = jnp.any(x)
        return jax.lax.pmax(found.astype(jnp.int32), self.axis_name) > 0 if self.axis_name else found

    def without_padding(self, logits: Float[Array, "M V"]) -> Float[Array, "M V"]:
        """This device's logits; those that are of no token become so low that nothing counts them."""
        if not self.axis_name or logits.shape[-1] * jax.lax.axis_size(self.axis_name) == self.size:
            return logits
        return jnp.where(self._tokens(logits.shape[-1]) < self.size, logits, _NEVER)

    def chosen(self, token: Int[Array, " M"], length: int) -> Bool[Array, "M V"]:
        """Which of this device's `length` logits are those of the tokens."""
        return self._tokens(length) == token[:, None]

    def _tokens(self, length: int) -> Int[Array, " V"]:
        numbers = jnp.arange(length)
        if not self.axis_name:
            return numbers
        return numbers * jax.lax.axis_size(self.axis_name) + jax.lax.axis_index(self.axis_name)
