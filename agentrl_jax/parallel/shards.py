"""Division of the rows of a batch, and of their positions, among devices, for use inside `jax.shard_map`.

Shapes: `N` rows of the batch, `R` shards of it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from agentrl_jax.errors import BadValue
from agentrl_jax.models.manual_axes import as_varying, varying
from agentrl_jax.parallel.cpu_collective_order import after
from agentrl_jax.parallel.mesh import DATA


@dataclasses.dataclass(frozen=True)
class Shards:
    """How the rows of a batch are divided among devices. On one device every method is the identity."""

    count: int = 1
    """R. Above 1 the methods must run inside `jax.shard_map` over `axes`."""
    axes: tuple[str, ...] = (DATA,)
    """Mesh axes that the rows are sharded over."""
    sequence: tuple[str, ...] = ()
    """Mesh axes of devices that have the same rows and divide their positions, see `models.sequence_attention`."""

    def shard_rows(self, tree: Any) -> Any:
        """This device's shard of replicated rows: leaves [N, ...] -> [N / R, ...].

        It has every R-th row, so that the rows without sampled tokens, which are at the end of a batch, are divided
        evenly. Raises a ValueError where R does not divide N.
        """
        if self.count == 1:
            return tree
        index = jax.lax.axis_index(self.axes)

        def cut(x):
            if x.shape[0] % self.count:
                raise BadValue(
                    f"{x.shape[0]} rows cannot be divided among {self.count} devices; use a multiple",
                    key="rows",
                    value=x.shape[0],
                )
            numbered = x.reshape(-1, self.count, *x.shape[1:])
            return jax.lax.dynamic_index_in_dim(numbered, index, axis=1, keepdims=False)

        return jax.tree.map(cut, tree)

    def all_gather_rows(self, tree: Any) -> Any:
        """The rows of all shards on every device, the inverse of `shard_rows`: leaves [N / R, ...] -> [N, ...]."""
        return self._gathered(tree, axis=1)

    def all_gather_blocks(self, tree: Any) -> Any:
        """Like `all_gather_rows`, but the rows of each device are a contiguous block of the batch."""
        return self._gathered(tree, axis=0)

    def block(self, tree: Any) -> Any:
        """This device's contiguous block of replicated rows, the inverse of `all_gather_blocks`."""
        if self.count == 1:
            return tree
        index = jax.lax.axis_index(self.axes)
        return jax.tree.map(lambda x: x.reshape(self.count, -1, *x.shape[1:])[index], tree)

    def fetch_rows(self, tree: Any, number: Int[Array, " N"]) -> Any:
        """This device's share, as in `shard_rows`, of the rows with these numbers, from the devices that hold them.

        Every device holds a contiguous block of the rows: leaves [rows of the block, ...] -> [N / R, ...]. No device
        holds more than N rows meanwhile.
        """
        if self.count == 1:
            return jax.tree.map(lambda x: x[number], tree)
        by_device = number.reshape(-1, self.count).T.reshape(-1)

        def share(x):
            return jax.lax.psum_scatter(x, self.axes, scatter_dimension=0, tiled=True)

        return self._exchanged(tree, by_device, share)

    def gather_rows(self, tree: Any, number: Int[Array, " N"]) -> Any:
        """The rows with these numbers on every device, from blocks as in `fetch_rows`: leaves [N, ...]."""
        if self.count == 1:
            return jax.tree.map(lambda x: x[number], tree)
        return self._exchanged(tree, number, lambda x: jax.lax.psum(x, self.axes))

    def put_rows(self, tree: Any, rows: Any, number: Int[Array, " N"]) -> Any:
        """This device's block with the replicated `rows`, leaves [N, ...], in the places of these numbers."""

        def put(x, new):
            at = number - self._first(x)
            return x.at[jnp.where(at < 0, len(x), at)].set(new, mode="drop")

        return jax.tree.map(put, tree, rows)

    def _first(self, x: jax.Array) -> Int[Array, ""] | int:
        """Number of the first row of this device's block."""
        return 0 if self.count == 1 else jax.lax.axis_index(self.axes) * len(x)

    def _gathered(self, tree: Any, axis: int) -> Any:
        if self.count == 1:
            return tree
        index = jax.lax.axis_index(self.axes)

        def gather(x):
            # A sum of disjoint shards instead of an all-gather, because its result counts as replicated.
            numbered = jnp.zeros((*x.shape[:axis], self.count, *x.shape[axis:]), x.dtype)
            numbered = jax.lax.dynamic_update_index_in_dim(numbered, x, index, axis=axis)
            return jax.lax.psum(numbered, self.axes).reshape(-1, *x.shape[1:]).astype(x.dtype)

        return jax.tree.map(gather, tree)

    def _exchanged(self, tree: Any, number: Int[Array, " N"], add: Callable[[jax.Array], jax.Array]) -> Any:
        """Rows of all devices' blocks, as the sum that `add` makes of every device's own ones.

        One collective moves all leaves, as integers, so that each bit arrives.
        """
        leaves, structure = jax.tree.flatten(tree)
        at = number - self._first(leaves[0])
        here = (at >= 0) & (at < len(leaves[0]))
        columns = [_as_integers(x[jnp.where(here, at, 0)]) for x in leaves]
        ends = np.cumsum([x.shape[1] for x in columns])
        sent = jnp.where(here[:, None], jnp.concatenate(columns, axis=1), 0)
        parts = jnp.split(add(sent), ends[:-1], axis=1)
        return jax.tree.unflatten(structure, [_from_integers(part, like) for part, like in zip(parts, leaves)])

    def sum(self, tree: Any) -> Any:
        """Sum over shards."""
        return tree if self.count == 1 else jax.lax.psum(tree, self.axes)

    def sum_of_gradients(self, grads: Any, params: Any) -> Any:
        """Sum over devices of the gradients; `params` are the parameters before they were marked as varying.

        The gradient of a sharded parameter is already summed over the devices that it is sharded over.
        """

        def add(grad, param):
            over = tuple(axis for axis in self._divided if axis not in varying(param))
            return jax.lax.psum(grad, over) if over else grad

        return jax.tree.map(add, grads, params)

    def norm(self, tree: Any) -> Float[Array, ""]:
        """Euclidean norm of all leaves, which may be sharded."""
        if self.count == 1:
            return optax.tree.norm(tree)
        by_axes: dict[tuple[str, ...], Any] = {}
        for leaf in jax.tree.leaves(tree):
            by_axes.setdefault(tuple(sorted(varying(leaf))), []).append(leaf)
        squares = (jax.lax.psum(optax.tree.norm(part, squared=True), axes) for axes, part in by_axes.items())
        return jnp.sqrt(sum(squares, jnp.float32(0)))

    def largest(self, tree: Any) -> Any:
        """Maximum over shards."""
        return tree if self.count == 1 else jax.lax.pmax(tree, self.axes)

    def after(self, done: Any, tree: Any) -> Any:
        """`tree`, made to depend on `done`, so that loops with collectives that read it start after `done`."""
        return after(done, self.varying_rows(tree)) if self.count > 1 or self.sequence else tree

    def varying(self, tree: Any) -> Any:
        """Marks replicated values as varying over devices, so that loops and gradients treat them as such."""
        return jax.tree.map(lambda x: as_varying(x, self._divided), tree)

    def varying_rows(self, tree: Any) -> Any:
        """Marks values as varying over devices with different rows, like scores, which all devices of a row have."""
        return jax.tree.map(lambda x: as_varying(x, self._row_axes), tree)

    @property
    def _row_axes(self) -> tuple[str, ...]:
        return self.axes if self.count > 1 else ()

    @property
    def _divided(self) -> tuple[str, ...]:
        """Mesh axes over which devices compute different shares of a batch."""
        return (*self._row_axes, *self.sequence)


def _as_integers(x: jax.Array) -> Int[Array, "N columns"]:
    flat = x.reshape(len(x), -1)
    return jax.lax.bitcast_convert_type(flat, jnp.int32) if flat.dtype == jnp.float32 else flat.astype(jnp.int32)


def _from_integers(x: Int[Array, "N columns"], like: jax.Array) -> jax.Array:
    """Inverse of `_as_integers`, with the dtype and the trailing axes of `like`."""
    typed = jax.lax.bitcast_convert_type(x, like.dtype) if like.dtype == jnp.float32 else x.astype(like.dtype)
    return typed.reshape(-1, *like.shape[1:])


def maybe_shard_map(
    function: Callable[..., Any],
    mesh: Mesh,
    in_specs: Any,
    out_specs: Any,
    *,
    axes: Sequence[str],
    replicated_results: bool,
) -> Callable[..., Any]:
    """`jax.shard_map` over some mesh axes, or the function itself on one device.

    `function` runs once per shard, and the specs name `axes` only; the compiler handles the other mesh axes. With
    `replicated_results`, some result is declared equal on all shards, and this is checked. The check requires loops to
    start from values marked as varying, but the loops of environments start from constants. A function whose results
    are all per shard is therefore not checked.
    """
    if mesh.size == 1:
        return function
    # Axes of one device are mapped too: left to the compiler, they would only hinder callbacks.
    manual = {axis for axis, size in mesh.shape.items() if axis in axes or size == 1}
    return jax.shard_map(
        function,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=manual,
        check_vma=replicated_results,
    )
