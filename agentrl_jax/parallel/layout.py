"""Sharding of every tensor: names of its logical axes, and rules that map these names to axes of the mesh.

A tensor's logical axes follow from its name in the parameter tree, so adapters, optimizer moments and copies are
sharded like the matrix they belong to. `UPDATE` and `ROLLOUT` are the two layouts of a run.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.errors import BadValue
from agentrl_jax.parallel.mesh import DATA, FSDP, SEQUENCE, TENSOR

Axis = str | tuple[str, ...] | None
"""Mesh axes that shard a logical axis; None: it is not sharded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """Mesh axes that shard each logical axis."""

    vocab: Axis
    """Rows of the embedding, columns of `lm_head`."""
    embed_dim: Axis
    """The embedding dimension (residual stream)."""
    heads: Axis
    """Query heads; a head is never split."""
    kv_heads: Axis
    """Key and value heads; a head is never split."""
    mlp: Axis
    """Inner size of the feed-forward layer."""
    rows: Axis
    """Trajectories, and rows of the learner."""

    @property
    def row_axes(self) -> tuple[str, ...]:
        """Mesh axes that the rows are sharded over."""
        return _as_tuple(self.rows)

    def spec(self, axes: Sequence[str | None], counts: Sequence[int], mesh: Mesh, name: str = "a tensor") -> Spec:
        """The partition spec of the tensor `name`, whose axes have these logical names; None is never sharded.

        An axis is sharded only if the mesh axes divide its count of indivisible units (heads for an axis of heads,
        entries otherwise); two key-value heads on four devices are not.

        Raises:
            ValueError: the rules would shard two axes of the tensor over the same mesh axis.
        """
        taken: dict[str, str | None] = {}
        entries: list[Axis] = []
        for axis, count in zip(axes, counts):
            over = tuple(x for x in _as_tuple(getattr(self, axis) if axis else None) if mesh.shape[x] > 1)
            for mesh_axis in over:
                if mesh_axis in taken:
                    raise BadValue.at(
                        name,
                        f"the mesh axis {mesh_axis!r} would split both {taken[mesh_axis]!r} and {axis!r}; give one of "
                        "them another mesh axis, or None, in the rules",
                        mesh_axis,
                    )
                taken[mesh_axis] = axis
            divides = count % math.prod(mesh.shape[x] for x in over) == 0
            entries.append(_as_entry(over) if divides else None)
        while entries and entries[-1] is None:
            entries.pop()
        return Spec(*entries)


UPDATE = Rules(vocab=TENSOR, embed_dim=FSDP, heads=TENSOR, kv_heads=TENSOR, mlp=TENSOR, rows=(DATA, FSDP))
"""Learning: matrices are sharded over fsdp and tensor, and all-gathered over fsdp layer by layer."""

ROLLOUT = Rules(vocab=TENSOR, embed_dim=None, heads=TENSOR, kv_heads=TENSOR, mlp=TENSOR, rows=(DATA, FSDP, SEQUENCE))
"""Decoding: the embedding dimension is not sharded; all devices but those of `tensor` play different episodes."""

WIDE_ROLLOUT = Rules(
    vocab=(FSDP, TENSOR),
    embed_dim=None,
    heads=(FSDP, TENSOR),
    kv_heads=(FSDP, TENSOR),
    mlp=(FSDP, TENSOR),
    rows=(DATA, SEQUENCE),
)
"""Decoding of a model too large for `ROLLOUT`: fsdp is a second tensor axis."""

_MATRICES = {
    "query": ("embed_dim", "heads"),
    "key": ("embed_dim", "kv_heads"),
    "value": ("embed_dim", "kv_heads"),
    "output": ("heads", "embed_dim"),
    "gate": ("embed_dim", "mlp"),
    "up": ("embed_dim", "mlp"),
    "down": ("mlp", "embed_dim"),
}
_AXES: dict[str, tuple[str | None, ...]] = {
    "embedding": ("vocab", "embed_dim"),
    "lm_head": ("embed_dim", "vocab"),
    **dict.fromkeys(("final_norm", "head", "attention_norm", "mlp_norm"), ("embed_dim",)),
    **dict.fromkeys(("query_norm", "key_norm"), (None,)),
    **_MATRICES,
    **{f"{name}_bias": (outputs,) for name, (_, outputs) in _MATRICES.items()},
    **{f"{name}_lora_a": (inputs, None) for name, (inputs, _) in _MATRICES.items()},
    **{f"{name}_lora_b": (None, outputs) for name, (_, outputs) in _MATRICES.items()},
}


def logical_axes(path: Sequence[str], rank: int) -> tuple[str | None, ...]:
    """Logical axes of a parameter, of its optimizer moments, or of its low-rank factors.

    `path` has the keys in the tree, from the root; a low-rank factor is `query/a`, or `query_lora_a` once attached. The
    rank is one more than for a single layer if layers are stacked.

    Raises:
        ValueError: there is no rule for a tensor of that name and rank.
    """
    if rank == 0:
        return ()
    name = path[-1] if path else ""
    axes = _AXES.get(f"{path[-2]}_lora_{name}" if name in ("a", "b") and len(path) > 1 else name, ())
    if not axes or rank - len(axes) not in (0, 1):
        raise BadValue(
            f"no rule says how {'/'.join(path)}, of {rank} axes, is sharded; name its axes in the layout",
            key="/".join(path),
        )
    return (None,) * (rank - len(axes)) + axes


def shardings(tree: Any, mesh: Mesh, rules: Rules, *, head_dim: int) -> Any:
    """The sharding of every leaf of a tree of parameters, adapters or optimizer state, or of their shapes.

    Raises:
        ValueError: the rules conflict, or there is no rule for a leaf.
    """

    if mesh.shape[FSDP] * mesh.shape[TENSOR] == 1:  # whatever its axes, nothing divides a tensor
        return jax.tree.map(lambda _: NamedSharding(mesh, Spec()), tree)

    def sharding(path, leaf):
        names = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
        # What ends in a field is no parameter, nor like one: a number or an array of an optimizer.
        like_a_parameter = bool(path) and isinstance(path[-1], jax.tree_util.DictKey)
        axes = logical_axes(names, leaf.ndim) if like_a_parameter else (None,) * leaf.ndim
        counts = [n // head_dim if axis in ("heads", "kv_heads") else n for axis, n in zip(axes, leaf.shape)]
        return NamedSharding(mesh, rules.spec(axes, counts, mesh, "/".join(names)))

    return jax.tree_util.tree_map_with_path(sharding, tree)


def specs_over(shardings: Any, axes: Sequence[str]) -> Any:
    """Partition specs of the shardings, restricted to some mesh axes, for `jax.shard_map` over these axes."""

    def keep(entry: Axis) -> Axis:
        return _as_entry(tuple(axis for axis in _as_tuple(entry) if axis in axes))

    return jax.tree.map(lambda sharding: Spec(*(keep(entry) for entry in sharding.spec)), shardings)


def _as_tuple(axis: Axis) -> tuple[str, ...]:
    return () if axis is None else (axis,) if isinstance(axis, str) else axis


def _as_entry(axes: tuple[str, ...]) -> Axis:
    return axes if len(axes) > 1 else axes[0] if axes else None
