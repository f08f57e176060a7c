"""The `data` axis of the mesh, as seen from inside `jax.shard_map`.

Letters: `N` rows of the whole batch, `R` devices of the axis.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

AXIS = "data"


def data_mesh(devices: int) -> Mesh:
    """A mesh of the first `devices` devices along `data`; 0 takes all.

    Raises:
        ValueError: there are fewer devices.
    """
    available = jax.devices()
    count = devices or len(available)
    if count > len(available):
        raise ValueError(f"devices is {count}, but this host has {len(available)}; set devices to at most that or 0")
    return Mesh(np.array(available[:count]), (AXIS,), axis_types=(AxisType.Auto,))


@dataclasses.dataclass(frozen=True)
class Shards:
    """How the rows of a batch are shared out. With one device every method is the identity.

    Attributes:
        count: R, static. Above 1 the methods must run inside `jax.shard_map` over `AXIS`.
    """

    count: int = 1

    def local(self, tree: Any) -> Any:
        """This device's share of replicated rows, every R-th one: leaves [N, ...] -> [N / R, ...].

        Rows with nothing to learn from stand at the end of a batch and are shared out evenly like this.

        Raises:
            ValueError: R does not divide N.
        """
        if self.count == 1:
            return tree
        index = jax.lax.axis_index(AXIS)

        def share(x):
            if x.shape[0] % self.count:
                raise ValueError(f"{x.shape[0]} rows cannot be shared by {self.count} devices; use a multiple")
            dealt = x.reshape(-1, self.count, *x.shape[1:])
            return jax.lax.dynamic_index_in_dim(dealt, index, axis=1, keepdims=False)

        return jax.tree.map(share, tree)

    def replicate(self, tree: Any) -> Any:
        """Every device's rows on all of them, in the order that `local` found: leaves [N / R, ...] -> [N, ...]."""
        if self.count == 1:
            return tree
        index = jax.lax.axis_index(AXIS)

        def collect(x):
            # A sum of disjoint parts, because its result is known to be equal on all devices.
            dealt = jnp.zeros((x.shape[0], self.count, *x.shape[1:]), x.dtype)
            dealt = jax.lax.psum(jax.lax.dynamic_update_index_in_dim(dealt, x, index, axis=1), AXIS)
            return dealt.reshape(-1, *x.shape[1:])

        return jax.tree.map(collect, tree)

    def block(self, tree: Any) -> Any:
        """This device's contiguous block of replicated rows, the one that a rollout gives it: [N, ...] -> [N / R, ...].

        Raises:
            ValueError: R does not divide N.
        """
        if self.count == 1:
            return tree
        index = jax.lax.axis_index(AXIS)

        def cut(x):
            if x.shape[0] % self.count:
                raise ValueError(f"{x.shape[0]} rows are no whole blocks for {self.count} devices; use a multiple")
            blocks = x.reshape(self.count, -1, *x.shape[1:])
            return jax.lax.dynamic_index_in_dim(blocks, index, axis=0, keepdims=False)

        return jax.tree.map(cut, tree)

    def join(self, tree: Any) -> Any:
        """Every device's block on all of them, in the order of `block`: leaves [N / R, ...] -> [N, ...]."""
        if self.count == 1:
            return tree
        index = jax.lax.axis_index(AXIS)

        def collect(x):
            # As in `replicate`, a sum of disjoint parts.
            blocks = jnp.zeros((self.count, *x.shape), x.dtype)
            blocks = jax.lax.psum(jax.lax.dynamic_update_index_in_dim(blocks, x, index, axis=0), AXIS)
            return blocks.reshape(-1, *x.shape[1:])

        return jax.tree.map(collect, tree)

    def sum(self, tree: Any) -> Any:
        """Sum over devices."""
        return tree if self.count == 1 else jax.lax.psum(tree, AXIS)

    def largest(self, tree: Any) -> Any:
        """Greatest over devices."""
        return tree if self.count == 1 else jax.lax.pmax(tree, AXIS)

    def varying(self, tree: Any) -> Any:
        """Marks replicated values as this device's own, so that loops and gradients treat them as such."""
        if self.count == 1:
            return tree

        def mark(x):
            known = AXIS in jax.typeof(x).manual_axis_type.varying
            return x if known else jax.lax.pcast(x, AXIS, to="varying")

        return jax.tree.map(mark, tree)


def on_mesh(
    function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any, *, replicated_results: bool
) -> Callable[..., Any]:
    """`jax.shard_map` over `data`, or the function itself on one device.

    Args:
        function: runs once per device.
        mesh: from `data_mesh`.
        in_specs: as for `jax.shard_map`.
        out_specs: as for `jax.shard_map`.
        replicated_results: some result is claimed to be equal on all devices, which is then checked. The check asks
            that loops start from values marked as varying. Environments know nothing of devices and start theirs from
            constants, so a function whose results are all per device, which claims nothing, is not checked.
    """
    if mesh.size == 1:
        return function
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=replicated_results)
