"""Attention over the keys of a chunk or of the segments of a cache, for a few rows at a time to bound memory.

Shapes: `B` rows, `C` tokens of a chunk, `S` positions of a segment or sequence, `H` query heads, `K` key-value heads,
`Dh` head dimension. The softmax is computed in f32.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.models.matmul import attention_scores, float32_product

SCORES_AT_ONCE = 2**22
"""Largest number of attention scores of a chunk that are computed at a time: 16 MiB.

More might not fit in memory, and scores that do not fit in a CPU's cache take three times as long.
"""

Query = Float[Array, "B C H Dh"]
Keys = Float[Array, "B K S Dh"]
SharedKeys = Float[Array, "K S Dh"]
"""Keys or values that all rows read."""
Visible = Bool[Array, "#B C S"]


class Segment(NamedTuple):
    """A part of the positions that queries read: of each row, or, with shared keys and values, of all rows."""

    key: Keys | SharedKeys
    value: Keys | SharedKeys
    visible: Visible
    """The positions that each query sees; at least one of all segments."""


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

    def scores(segment: Segment) -> jax.Array:
        if segment.key.ndim == 3:
            product = _split(float32_product(_joined(rows), segment.key.swapaxes(1, 2)), batch)
        else:
            product = attention_scores(rows, segment.key, few=chunk == 1 and shared > 1)
        # Add a bias, and divide after the product: `where` and `softmax` take 3.7 times as long on a CPU.
        bias = jnp.where(segment.visible, 0.0, jnp.finfo(jnp.float32).min / 2)
        return product + jnp.tile(bias, (1, shared, 1))[:, None]

    def mixed(weights: jax.Array, value: Keys | SharedKeys) -> jax.Array:
        weights = weights.astype(value.dtype)
        if value.ndim == 3:
            return _split(float32_product(_joined(weights), value), batch)
        return float32_product(weights, value)

    scored = [scores(segment) for segment in segments]
    highest = functools.reduce(jnp.maximum, (jnp.max(x, axis=-1, keepdims=True) for x in scored))
    weights = [jnp.exp(x - jax.lax.stop_gradient(highest)) for x in scored]
    # A segment that is hidden from a row adds exact zeros, so that it changes no bit of the row's result.
    total = functools.reduce(jnp.add, (jnp.sum(x, axis=-1, keepdims=True) for x in weights))
    values = functools.reduce(jnp.add, (mixed(x, segment.value) for x, segment in zip(weights, segments)))
    values = (values / total).reshape(batch, kv_heads, shared, chunk, head_dim).transpose(0, 3, 1, 2, 4)
    return values.reshape(batch, chunk, heads, head_dim).astype(query.dtype)


def _joined(x: Float[Array, "B K M N"]) -> Float[Array, "K BM N"]:
    return x.swapaxes(0, 1).reshape(x.shape[1], -1, x.shape[3])


def _split(x: Float[Array, "K BM N"], batch: int) -> Float[Array, "B K M N"]:
    return x.reshape(len(x), batch, -1, x.shape[2]).swapaxes(0, 1)


def attend_cached(query: Query, segments: Sequence[Segment]) -> Query:
    """Like `attend_segments`, but for a few rows of a chunk at a time, at most `SCORES_AT_ONCE` scores."""
    batch, chunk, heads, _ = query.shape
    most = SCORES_AT_ONCE // (chunk * heads * sum(segment.visible.shape[-1] for segment in segments))
    if chunk == 1 or most >= batch:
        return attend_segments(query, segments)
    # Shared keys and values are not split into rows.
    per_row, structure = jax.tree.flatten([s.visible if s.key.ndim == 3 else s for s in segments])

    def of_some(query, *arrays):
        parts = zip(segments, jax.tree.unflatten(structure, arrays))
        return attend_segments(query, [p if isinstance(p, Segment) else s._replace(visible=p) for s, p in parts])

    return by_rows(most, of_some, query, *per_row)


def attend_filled(
    query: Query, blocks: Sequence[Segment], filled: Int[Array, ""], others: Sequence[Segment] = ()
) -> Query:
    """Like `attend_cached`, over the first `filled` blocks (at least one) and all other segments."""

    def over(number):
        return lambda query, blocks, others: attend_cached(query, [*blocks[:number], *others])

    counts = [over(number) for number in range(1, len(blocks) + 1)]
    return jax.lax.switch(filled - 1, counts, query, list(blocks), list(others))


def by_rows(most: int, function: Callable[..., jax.Array], query: jax.Array, *arrays: jax.Array) -> jax.Array:
    """Applies a function of rows to at most `most` rows at a time; an array with a single row is broadcast."""
    batch = len(query)
    at_once = max(n for n in range(1, max(most, 1) + 1) if batch % n == 0)
    arrays = tuple(jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in arrays)
    parts = [x.reshape(-1, at_once, *x.shape[1:]) for x in (query, *arrays)]
    return jax.lax.map(lambda part: function(*part), parts).reshape(query.shape)


def visible(keys: Int[Array, "#B S"], queries: Int[Array, "#B C"], window: int = 0) -> Bool[Array, "#B C S"]:
    """Causal mask between positions of keys and of queries; with a window, the query's latest positions only."""
    seen = keys[:, None] <= queries[:, :, None]
    return seen & (keys[:, None] > queries[:, :, None] - window) if window else seen
