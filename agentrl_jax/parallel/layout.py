"""Where every tensor lives: names of its axes, and rules that lay these names over the axes of the mesh.

A tensor's logical axes follow from its name in the tree of parameters, so that adapters, optimizer moments and copies
are laid out as the matrix they belong to. `UPDATE` and `ROLLOUT` are the two layouts of a run.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.parallel.mesh import DATA, FSDP, TENSOR

Axis = str | tuple[str, ...] | None
"""Axes of the mesh that split a logical axis; None leaves it whole."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """Which axes of the mesh split which logical axis.

    Attributes:
        vocab: rows of the embedding, columns of the output matrix.
        embed_dim: the residual stream D.
        heads: query heads H, never split inside a head.
        kv_heads: key and value heads K, likewise.
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
        """Axes of the mesh that the rows are laid over."""
        return _as_tuple(self.rows)

    def spec(self, axes: Sequence[str | None], counts: Sequence[int], mesh: Mesh, name: str = "a tensor") -> Spec:
        """Lays one tensor over the mesh.

        An axis whose count the mesh does not divide stays whole (two key-value heads on four devices, say).

        Args:
            axes: logical name of each axis; None for an axis that is never split.
            counts: units of each axis that can be parted: heads for an axis of heads, entries otherwise.
            mesh: the devices.
            name: of the tensor, for the error.

        Raises:
            ValueError: the rules would split two axes of the tensor by one axis of the mesh.
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
"""Learning: matrices are split both ways and gathered layer by layer."""

ROLLOUT = Rules(vocab=TENSOR, embed_dim=None, heads=TENSOR, kv_heads=TENSOR, mlp=TENSOR, rows=(DATA, FSDP))
"""Decoding: whole rows of the stream; every data and fsdp device plays episodes of its own."""

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
    """Names of the axes of a parameter, an optimizer moment of it, or a low-rank part of it.

    Args:
        path: its keys in the tree, from the root; a low-rank part is `query/a`, or `query_lora_a` where it is attached.
        rank: number of its axes; one more than a matrix of one layer has where layers are stacked.

    Raises:
        ValueError: no rule knows a tensor of that name and rank.
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
        head_dim: entries of a head, which stay together.

    Raises:
        ValueError: the rules collide, or a leaf is unknown.
    """

    def place(path, leaf):
        names = [str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)]
        axes = logical_axes(names, leaf.ndim)
        counts = [n // head_dim if axis in ("heads", "kv_heads") else n for axis, n in zip(axes, leaf.shape)]
        return NamedSharding(mesh, rules.spec(axes, counts, mesh, "/".join(names)))

    return jax.tree_util.tree_map_with_path(place, tree)


def specs_over(shardings: Any, axes: Sequence[str]) -> Any:
    """What the shardings say of some axes of the mesh, as `jax.shard_map` over these wants to know it."""

    def keep(entry: Axis) -> Axis:
        kept = tuple(axis for axis in _as_tuple(entry) if axis in axes)
        return (kept if len(kept) > 1 else kept[0]) if kept else None

    return jax.tree.map(lambda sharding: Spec(*(keep(entry) for entry in sharding.spec)), shardings)


def _as_tuple(axis: Axis) -> tuple[str, ...]:
    return () if axis is None else (axis,) if isinstance(axis, str) else axis
