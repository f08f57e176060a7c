"""Attention over the keys of a chunk or of the segments of a cache, for a few rows at a time to bound memory.

Shapes: `B` rows, `C` tokens of a chunk, `S` positions of a segment or sequence, `H` query heads, `K` key-value heads,
`Dh` head dimension. The softmax is computed in f32.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.models.manual_axes import as_varying, varying
from agentrl_jax.models.matmul import attention_scores, weighted_values
from agentrl_jax.models.quantized import Quantized

SCORES_AT_ONCE = 2**22
"""Largest number of attention scores of a chunk that are computed at a time: 16 MiB.

More might not fit in memory, and scores that do not fit in a CPU's cache take three times as long.
"""

NO_WINDOW = 2**30
"""A window that hides nothing, where some layers have one and others have none."""

HIDDEN = float(jnp.finfo(jnp.float32).min / 2)
"""Added to the scores of positions that a query does not see."""

Query = Float[Array, "B C H Dh"]
Keys = Float[Array, "B K S Dh"]
CachedKeys = Keys | Quantized
"""Keys or values of a cache; integers have a scale for each position and head."""
SharedKeys = Float[Array, "K S Dh"] | Quantized
"""Keys or values that all rows read."""
Visible = Bool[Array, "#B C S"]


class Segment(NamedTuple):
    """A part of the positions that queries read: of each row, of groups of contiguous rows, or of all rows together."""

    key: CachedKeys | SharedKeys
    """With fewer leading entries than there are rows, each is read by the rows of a group."""
    value: CachedKeys | SharedKeys
    visible: Visible
    """The positions that each query sees; at least one of all segments."""
    used: Bool[Array, ""] | None = None
    """Whether some row sees a position; if not, nothing is read. None if that is always so."""
    rows: Int[Array, " B"] | None = None
    """Which rows of `key` and `value` the B rows of queries read; None if all, in their order."""


def attend(query: Query, key: Keys, value: Keys, visible: Visible) -> Query:
    """Grouped-query attention (Ainslie et al. 2023): query head h reads key-value head h // (H / K)."""
    return attend_segments(query, [Segment(key, value, visible)])


def attend_segments(query: Query, segments: Sequence[Segment]) -> Query:
    """Attention over the positions of several segments, as if they followed each other."""
    batch, chunk, heads, head_dim = query.shape
    kv_heads = segments[0].key.shape[-3]
    shared = heads // kv_heads
    # Queries that share a key-value head become rows of one matrix product.
    rows = (query * head_dim**-0.5).reshape(batch, chunk, kv_heads, shared, head_dim).transpose(0, 2, 3, 1, 4)
    rows = rows.reshape(batch, kv_heads, -1, head_dim)

    few = chunk == 1 and shared > 1
    parts = [_attend_used(rows, segment, few=few) for segment in segments]
    values, _, total = parts[0]
    if len(parts) > 1:
        # Partial softmaxes are merged by their maximums. A segment that is hidden from a row adds exact zeros, so that
        # it changes no bit of the row's result.
        largest = functools.reduce(jnp.maximum, (high for _, high, _ in parts))
        scales = [jnp.exp(high - largest) for _, high, _ in parts]
        values = functools.reduce(jnp.add, (part[0] * scale for part, scale in zip(parts, scales)))
        total = functools.reduce(jnp.add, (part[2] * scale for part, scale in zip(parts, scales)))
    values = (values / total).reshape(batch, kv_heads, shared, chunk, head_dim).transpose(0, 3, 1, 2, 4)
    return values.reshape(batch, chunk, heads, head_dim).astype(query.dtype)


Partial = tuple[Float[Array, "B K M Dh"], Float[Array, "B K M 1"], Float[Array, "B K M 1"]]
"""Values weighted by powers of scores, the largest score, and the sum of the weights."""


def _attend_used(rows: Float[Array, "B K M Dh"], segment: Segment, *, few: bool) -> Partial:
    """Like `_attend_part`, but reads the segment only if it is used."""

    def part(rows, key, value, visible, chosen):
        if chosen is not None:
            key, value = jax.tree.map(lambda x: x[chosen], (key, value))
        return _attend_part(rows, Segment(key, value, visible), few=few)

    def nothing(rows, *_):
        zeros = as_varying(jnp.zeros(rows.shape, jnp.float32), varying(rows))
        return zeros, zeros[..., :1] + HIDDEN, zeros[..., :1]

    arrays = (segment.key, segment.value, segment.visible, segment.rows)
    if segment.used is None:
        return part(rows, *arrays)
    return jax.lax.cond(segment.used, part, nothing, rows, *arrays)


def _attend_part(rows: Float[Array, "B K M Dh"], segment: Segment, *, few: bool) -> Partial:
    """Attention of scaled queries over one segment, before division by the sum of the weights."""
    batch, kv_heads, queries, head_dim = rows.shape
    if segment.key.ndim == 4 and (group_size := batch // segment.key.shape[0]) > 1:

        def of_member(rows, seen):
            return _attend_part(rows, segment._replace(visible=seen), few=False)

        # Products of the same keys with the queries of a whole group become one product.
        by_member = (x.reshape(-1, group_size, *x.shape[1:]) for x in (rows, segment.visible))
        parts = jax.vmap(of_member, in_axes=1, out_axes=1)(*by_member)
        return jax.tree.map(lambda x: x.reshape(batch, *x.shape[2:]), parts)
    # Add a bias, and divide after the product: `where` and `softmax` take 3.7 times as long on a CPU.
    bias = jnp.where(segment.visible, 0.0, HIDDEN)
    if bias.shape[1] > 1:  # a single token needs no copy for each head
        bias = jnp.tile(bias, (1, queries // bias.shape[1], 1))
    if segment.key.ndim == 4:
        return _weighted(attention_scores(rows, segment.key, few=few) + bias[:, None], segment.value, rows.dtype)
    # One product for the queries of all rows; only what is as small as the queries is split into rows again.
    joined = rows.swapaxes(0, 1).reshape(kv_heads, -1, head_dim)
    bias = jnp.broadcast_to(bias, (batch, queries, bias.shape[2])).reshape(1, -1, bias.shape[2])
    parts = _weighted(attention_scores(joined, segment.key) + bias, segment.value, rows.dtype)
    return jax.tree.map(lambda x: x.reshape(kv_heads, batch, -1, x.shape[2]).swapaxes(0, 1), parts)


def _weighted(
    scores: Float[Array, "*B M S"], value: CachedKeys | SharedKeys, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array, jax.Array]:
    highest = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    weights = jnp.exp(scores - highest)
    return weighted_values(weights, value, dtype), highest, jnp.sum(weights, axis=-1, keepdims=True)


def attend_cached(query: Query, segments: Sequence[Segment]) -> Query:
    """Like `attend_segments`, but for a few rows of a chunk at a time, at most `SCORES_AT_ONCE` scores."""
    _, chunk, heads, _ = query.shape
    if chunk == 1:
        return attend_segments(query, segments)
    rows = len(query)
    chosen = [segment for segment in segments if segment.rows is not None]
    others = [segment for segment in segments if segment.rows is None]
    own = [segment for segment in others if segment.key.ndim == 4 and segment.key.shape[0] == rows]
    shared = [segment for segment in others if segment.key.ndim == 3 or segment.key.shape[0] < rows]
    group_size = max([rows // segment.key.shape[0] for segment in shared if segment.key.ndim == 4], default=1)

    def of_some(query, row, seen, arrays, of_chosen):
        def of_groups(x):
            return jax.lax.dynamic_slice_in_dim(x, row[0] // group_size, max(len(row) // group_size, 1))

        parts = [Segment(*some)._replace(used=segment.used) for segment, some in zip(own, arrays)]
        for segment, visible in zip(shared, seen):
            pair = segment.key, segment.value
            key, value = pair if segment.key.ndim == 3 else jax.tree.map(of_groups, pair)
            parts.append(Segment(key, value, visible))
        for segment, (visible, numbers) in zip(chosen, of_chosen):
            parts.append(segment._replace(visible=visible, rows=numbers))
        return attend_segments(query, parts)

    most = SCORES_AT_ONCE // (chunk * heads * sum(segment.visible.shape[-1] for segment in segments))
    seen = [segment.visible for segment in shared]
    arrays, of_chosen = [segment[:3] for segment in own], [(segment.visible, segment.rows) for segment in chosen]
    return by_rows(most, of_some, query, jnp.arange(rows), seen, arrays, of_chosen, group_size=group_size)


def by_rows(
    most: int, function: Callable[..., jax.Array], query: jax.Array, *trees: Any, group_size: int = 1
) -> jax.Array:
    """Applies a function of rows to at most `most` rows at a time; an array with a single row is broadcast.

    Rows are in groups of `group_size`, and a part has whole groups or is inside of one.
    """
    batch = len(query)
    parts = (n for n in range(1, min(max(most, 1), batch) + 1) if batch % n == 0)
    at_once = max(n for n in parts if n % group_size == 0 or group_size % n == 0)

    def split(x):
        return jnp.broadcast_to(x, (batch, *x.shape[1:])).reshape(-1, at_once, *x.shape[1:])

    parts = jax.tree.map(split, (query, *trees))
    return jax.lax.map(lambda part: function(*part), parts).reshape(query.shape)


def visible(
    keys: Int[Array, "#B S"], queries: Int[Array, "#B C"], window: int | Int[Array, ""] = 0
) -> Bool[Array, "#B C S"]:
    """Causal mask between positions of keys and of queries; with a window, the query's latest positions only.

    A window that is an array is at least 1.
    """
    seen = keys[:, None] <= queries[:, :, None]
    if isinstance(window, int) and not window:
        return seen
    return seen & (keys[:, None] > queries[:, :, None] - window)
