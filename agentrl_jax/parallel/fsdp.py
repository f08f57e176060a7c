"""Parameters sharded over devices and all-gathered where they are read (ZeRO, Rajbhandari et al. 2020)."""

import dataclasses
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from agentrl_jax.models.decoder import GATHERED, NoGather
from agentrl_jax.parallel.cpu_collective_order import ordered
from agentrl_jax.parallel.layout import logical_axes
from agentrl_jax.parallel.mesh import FSDP


@dataclasses.dataclass(frozen=True)
class Gather(NoGather):
    """All-gathers sharded parameters inside a `jax.shard_map` over `fsdp`; their gradients are reduce-scattered."""

    embed_dim: int
    """A logical axis "embed_dim" that is shorter than this is a shard."""

    def __call__(self, params: Any) -> Any:
        """The full parameters; the leaves are those of a layer, of stacked layers or of the decoder, by name."""
        return jax.tree_util.tree_map_with_path(self._gathered, params)

    def ordered(self, first: Any, second: Any) -> tuple[Any, Any]:
        """Both trees, see `cpu_collective_order.ordered`."""
        return ordered(first, second)

    def _gathered(self, path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        axes = logical_axes([str(key.key) for key in path], leaf.ndim)
        for index, axis in enumerate(axes):
            if axis == "embed_dim" and leaf.shape[index] < self.embed_dim:
                return checkpoint_name(jax.lax.all_gather(leaf, FSDP, axis=index, tiled=True), GATHERED)
        return leaf
