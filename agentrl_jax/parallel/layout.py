"""Sharding of every tensor: names of its logical axes, and rules that map these names to axes of the mesh.

A tensor's logical axes follow from its name in the parameter tree, so adapters, optimizer moments and copies are
sharded like the matrix they belong to. `UPDATE` and `ROLLOUT` are the two layouts of a run.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.parallel.mesh import DATA, FSDP, TENSOR

Axis = str | tuple[str, ...] | None
"""Mesh axes that shard a logical axis; None: it is not sharded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """Mesh axes that shard each logical axis.

    Attributes:
        vocab: rows of the embedding, columns of `lm_head`.
        embed_dim: the embedding dimension D (residual stream).
        heads: query heads H; a head is never split.
        kv_heads: key and value heads K; a head is never split.
        mlp: inner size F of the feed-forward layer.
        rows: trajectories, and rows of the learner.
    """

    vocab: Axis
    embed_dim: Axis
    heads: Axis
    kv_heads: Axis
    mlp: Axis
    rows: Axis

    @property
    def row_axes(self) -> tuple[str, ...]:
        """Mesh axes that the rows are sharded over."""
        return _as_tuple(self.rows)

    def spec(self, axes: Sequence[str | None], counts: Sequence[int], mesh: Mesh, name: str = "a tensor") -> Spec:
        """The partition spec of one tensor.

        An axis whose count the mesh axes do not divide is not sharded (for example two key-value heads on four
        devices).

        Args:
            axes: logical name of each axis; None for an axis that is never sharded.
            counts: number of indivisible units of each axis: heads for an axis of heads, entries otherwise.
            mesh: the devices.
            name: name of the tensor, for the error message.

        Raises:
            ValueError: the rules would shard two axes of the tensor over the same mesh axis.
        """
        taken: dict[str, str] = {}
        entries: list[Axis] = []
        for axis, count in zip(axes, counts):
            parts = _as_tuple(getattr(self, axis)) if axis else ()
            parts = tuple(part for part in parts if mesh.shape[part] > 1)
            for part in parts:
                if part in taken:
                    raise ValueError(
                        f"{name}: the mesh axis {part!r} would split both {taken[part]!r} and {axis!r}; give one of "
                        "them another mesh axis, or None, in the rules"
                    )
                taken[part] = str(axis)
            size = 1
            for part in parts:
                size *= mesh.shape[part]
            entries.append((parts if len(parts) > 1 else parts[0]) if parts and count % size == 0 else None)
        while entries and entries[-1] is None:
            entries.pop()
        return Spec(*entries)


UPDATE = Rules(vocab=TENSOR, embed_dim=FSDP, heads=TENSOR, kv_heads=TENSOR, mlp=TENSOR, rows=(DATA, FSDP))
"""Learning: matrices are sharded over fsdp and tensor, and all-gathered over fsdp layer by layer."""

ROLLOUT = Rules(vocab=TENSOR, embed_dim=None, heads=TENSOR, kv_heads=TENSOR, mlp=TENSOR, rows=(DATA, FSDP))
"""Decoding: the embedding dimension is not sharded; every data and fsdp device plays different episodes."""

WIDE_ROLLOUT = Rules(
    vocab=(FSDP, TENSOR), embed_dim=None, heads=(FSDP, TENSOR), kv_heads=(FSDP, TENSOR), mlp=(FSDP, TENSOR), rows=DATA
)
"""Decoding of a model too large for `ROLLOUT`: fsdp is a second tensor axis."""

_MATRICES: dict[str, tuple[str, str]] = {
    "query": ("embed_dim", "heads"),
    "key": ("embed_dim", "kv_heads"),
    "value": ("embed_dim", "kv_heads"),
    "output": ("heads", "embed_dim"),
    "gate": ("embed_dim", "mlp"),
    "up": ("embed_dim", "mlp"),
    "down": ("mlp", "embed_dim"),
}
_OUTER: dict[str, tuple[str, ...]] = {
    "embedding": ("vocab", "embed_dim"),
    "lm_head": ("embed_dim", "vocab"),
    "final_norm": ("embed_dim",),
    "head": ("embed_dim",),
}


def logical_axes(path: Sequence[str], rank: int) -> tuple[str | None, ...]:
    """Logical axes of a parameter, of its optimizer moments, or of its low-rank factors.

    Args:
        path: keys in the tree, from the root; a low-rank factor is `query/a`, or `query_lora_a` once attached.
        rank: number of axes of the tensor; one more than for a single layer if layers are stacked.

    Raises:
        ValueError: there is no rule for a tensor of that name and rank.
    """
    name = path[-1] if path else ""
    axes: tuple[str | None, ...]
    if rank == 0:
        return ()
    if name in ("a", "b") and len(path) > 1 and path[-2] in _MATRICES:
        inputs, outputs = _MATRICES[path[-2]]
        axes = (inputs, None) if name == "a" else (None, outputs)
    elif name in _OUTER:
        axes = _OUTER[name]
    elif name in _MATRICES:
        axes = _MATRICES[name]
    elif name.removesuffix("_lora_a") in _MATRICES:
        axes = (_MATRICES[name.removesuffix("_lora_a")][0], None)
    elif name.removesuffix("_lora_b") in _MATRICES:
        axes = (None, _MATRICES[name.removesuffix("_lora_b")][1])
    elif name.removesuffix("_bias") in _MATRICES:
        axes = _MATRICES[name.removesuffix("_bias")][1:]
    elif name in ("attention_norm", "mlp_norm"):
        axes = ("embed_dim",)
    elif name in ("query_norm", "key_norm"):
        axes = (None,)
    else:
        axes = ()
    if not axes or rank - len(axes) not in (0, 1):
        raise ValueError(f"no rule says how {'/'.join(path)}, of {rank} axes, is laid over devices; name its axes")
    return (None,) * (rank - len(axes)) + axes


def shardings(tree: Any, mesh: Mesh, rules: Rules, *, head_dim: int) -> Any:
    """The sharding of every leaf of a tree of parameters, adapters or optimizer state.

    Args:
        tree: arrays or their shapes.
        mesh: the devices.
        rules: the layout.
        head_dim: size of a head, which is never split.

    Raises:
        ValueError: the rules conflict, or there is no rule for a leaf.
    """

    def place(path, leaf):
        names = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
        axes = logical_axes(names, leaf.ndim)
        counts = [n // head_dim if axis in ("heads", "kv_heads") else n for axis, n in zip(axes, leaf.shape)]
        return NamedSharding(mesh, rules.spec(axes, counts, mesh, "/".join(names)))

    return jax.tree_util.tree_map_with_path(place, tree)


def specs_over(shardings: Any, axes: Sequence[str]) -> Any:
    """Partition specs of the shardings, restricted to some mesh axes, for `jax.shard_map` over these axes."""

    def keep(entry: Axis) -> Axis:
        kept = tuple(axis for axis in _as_tuple(entry) if axis in axes)
        return (kept if len(kept) > 1 else kept[0]) if kept else None

    return jax.tree.map(lambda sharding: Spec(*(keep(entry) for entry in sharding.spec)), shardings)


def _as_tuple(axis: Axis) -> tuple[str, ...]:
    return () if axis is None else (axis,) if isinstance(axis, str) else axis
