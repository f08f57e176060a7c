"""Parameters sharded over devices and all-gathered where they are read (ZeRO, Rajbhandari et al. 2020).

Embedding and output matrix, the largest of all, are never all-gathered: a device looks up its part of the embedding
dimension for the tokens of all devices, and computes the logits of its part of the vocabulary for all of them.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.models.decoder import GATHERED, NoGather
from agentrl_jax.models.vocabulary import Vocabulary
from agentrl_jax.parallel.cpu_collective_order import after, ordered
from agentrl_jax.parallel.layout import UPDATE, logical_axes
from agentrl_jax.parallel.mesh import FSDP, TENSOR


@dataclasses.dataclass(frozen=True)
class Gather(NoGather):
    """All-gathers sharded parameters inside a `jax.shard_map` over `fsdp`; their gradients are reduce-scattered.

    The devices of `fsdp` have different rows, and as many of them.
    """

    embed_dim: int
    """A logical axis "embed_dim" that is shorter than this is a shard."""
    head_dim: int

    def __call__(self, params: Any) -> Any:
        """The full parameters; the leaves are those of a layer, of stacked layers or of the decoder, by name."""
        return jax.tree_util.tree_map_with_path(self._gathered, params)

    def ordered(self, first: Any, second: Any) -> tuple[Any, Any]:
        """Both trees, see `cpu_collective_order.ordered`."""
        return ordered(first, second)

    def lookup(self, table: jax.Array, tokens: jax.Array) -> jax.Array:
        """The embeddings [B, S, D] of this device's tokens [B, S] from its part [V, D / n] of the table."""
        if table.shape[1] == self.embed_dim:
            return table[tokens]
        # After the table, so that collectives before it do not run at the same time.
        tokens = jax.lax.all_gather(after(jax.lax.stop_gradient(table), tokens), FSDP, tiled=True)
        if spec := self._blocks(logical_axes(["embedding"], 2), table):
            table = jax.lax.with_sharding_constraint(table, spec)  # and so its gradient
        return jax.lax.all_to_all(table[tokens], FSDP, split_axis=0, concat_axis=2, tiled=True)

    def head(self, params: Any, size: int) -> tuple[Any, Vocabulary]:
        """The output matrix of every n-th token of the vocabulary, in exchange for a part of the embedding dimension.

        Every n-th, so that the devices of `tensor`, which hold blocks of the vocabulary, keep to their blocks.
        """
        (name, matrix), *_ = params.items()
        axes = logical_axes([name], 2)
        tokens = axes.index("vocab")
        if matrix.shape[1 - tokens] == self.embed_dim:
            return params, Vocabulary(size)
        devices = jax.lax.axis_size(FSDP)

        def exchange(block):
            shape = list(block.shape)
            shape[tokens : tokens + 1] = -1, devices
            split = {"split_axis": tokens + 1, "concat_axis": 2 if tokens == 0 else 0}
            return jax.lax.all_to_all(block.reshape(shape), FSDP, **split, tiled=True).squeeze(tokens + 1)

        if size % (devices * jax.sharding.get_abstract_mesh().shape[TENSOR]):
            matrix = jnp.pad(matrix, [(0, -size % devices if axis == tokens else 0) for axis in range(2)])
            return {name: exchange(matrix)}, Vocabulary(size, FSDP)
        return {name: self._by_block(exchange, axes, matrix)}, Vocabulary(size, FSDP)

    def _gathered(self, path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        axes = logical_axes([str(key.key) for key in path], leaf.ndim)
        for index, axis in enumerate(axes):
            if axis == "embed_dim" and leaf.shape[index] < self.embed_dim:

                def gather(block, index=index):
                    return jax.lax.all_gather(block, FSDP, axis=index, tiled=True)

                return checkpoint_name(self._by_block(gather, axes, leaf), GATHERED)
        return leaf

    def _by_block(
        self, function: Callable[[jax.Array], jax.Array], axes: Sequence[str | None], x: jax.Array
    ) -> jax.Array:
        """A function with collectives over `fsdp`, of each block of an array that is also sharded over `tensor`.

        Without this the compiler would gather the blocks first.
        """
        spec = self._blocks(axes, x)
        if not spec:
            return function(x)
        return jax.shard_map(function, in_specs=(spec,), out_specs=spec, axis_names={TENSOR})(x)

    def _blocks(self, axes: Sequence[str | None], x: jax.Array) -> Spec:
        """How `tensor` divides an array into blocks."""
        mesh: Any = jax.sharding.get_abstract_mesh()
        counts = [n // self.head_dim if axis in ("heads", "kv_heads") else n for axis, n in zip(axes, x.shape)]
        return UPDATE.spec([None if axis == "embed_dim" else axis for axis in axes], counts, mesh)
