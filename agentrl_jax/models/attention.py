"""Attention over the keys of a chunk or of a cache, for a few rows at a time to bound memory.

Shapes: `B` rows, `C` tokens of a chunk, `S` cache or sequence positions, `H` query heads, `K` key-value heads, `Dh`
head dimension. The softmax is computed in f32.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from agentrl_jax.models.matmul import attention_scores, float32_product

SCORES_AT_ONCE = 2**22
"""Largest number of attention scores that `attend_by_rows` computes at a time: 16 MiB."""
LARGE_CACHE = 2**24
"""Size of a layer's keys and values, in numbers (64 MiB), from which `attend_cached` reads only the filled part."""
CACHED_AT_ONCE = 2**20
"""Largest number of keys and values that it then reads at a time: 4 MiB, which fit in a CPU's cache."""


def attend(query: jax.Array, key: jax.Array, value: jax.Array, visible: jax.Array) -> jax.Array:
    """Grouped-query attention (Ainslie et al. 2023) with an f32 softmax.

    Args:
        query: [B, C, H, Dh]
        key: [B, K, S, Dh]; query head h reads key-value head h // (H / K).
        value: [B, K, S, Dh]
        visible: bool[B or 1, C, S]; every query sees at least one position.

    Returns:
        [B, C, H, Dh]
    """
    batch, chunk, heads, head_dim = query.shape
    kv_heads, shared = key.shape[1], heads // key.shape[1]
    # Queries that share a key-value head become rows of one matrix product.
    rows = (query * head_dim**-0.5).reshape(batch, chunk, kv_heads, shared, head_dim).transpose(0, 2, 3, 1, 4)
    rows = rows.reshape(batch, kv_heads, -1, head_dim)
    scores = attention_scores(rows, key, few=chunk == 1 and shared > 1)
    # Add a bias, and divide after the product: `where` and `softmax` take 3.7 times as long on a CPU.
    bias = jnp.where(visible, 0.0, jnp.finfo(jnp.float32).min / 2)
    scores += jnp.tile(bias, (1, shared, 1))[:, None]
    weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    mixed = float32_product(weights.astype(value.dtype), value) / jnp.sum(weights, axis=-1, keepdims=True)
    mixed = mixed.reshape(batch, kv_heads, shared, chunk, head_dim).transpose(0, 3, 1, 2, 4)
    return mixed.reshape(batch, chunk, heads, head_dim).astype(query.dtype)


def attend_by_rows(query: jax.Array, key: jax.Array, value: jax.Array, visible: jax.Array) -> jax.Array:
    """Like `attend`, but for a few rows at a time, at most `SCORES_AT_ONCE` scores.

    The scores of all rows of a chunk over a long cache would not fit in memory, and scores that do not fit in a CPU's
    cache take three times as long. The backward pass recomputes them. With a single query per row there are few scores,
    so all rows are computed at once.
    """
    batch, chunk, heads, _ = query.shape
    most = SCORES_AT_ONCE // (chunk * heads * key.shape[2])
    if chunk == 1 or most >= batch:
        return jax.checkpoint(attend)(query, key, value, visible)
    return _by_rows(most, jax.checkpoint(attend), query, key, value, visible)


def attend_cached(
    query: jax.Array, key: jax.Array, value: jax.Array, visible: jax.Array, filled: jax.Array
) -> jax.Array:
    """Like `attend`, over a cache of which real queries see only the first `filled` i32[] positions.

    From `LARGE_CACHE` numbers on, a CPU reads only these positions, rounded up to the next quarter of the cache. For a
    smaller cache the copies would cost more than they save.
    """
    if key.size + value.size < LARGE_CACHE:
        return attend_by_rows(query, key, value, visible)
    quarters = functools.partial(_attend_quarters, filled)
    return jax.lax.platform_dependent(query, key, value, visible, cpu=quarters, default=attend_by_rows)


def _attend_quarters(filled, query, key, value, visible):
    _, chunk, heads, head_dim = query.shape
    kv_heads, size = key.shape[1:3]
    lengths = [-(-size * quarters // 4) for quarters in range(1, 5)]

    def over(length):
        def attend_first(query, key, value, visible):
            return attend(query, key[:, :, :length], value[:, :, :length], visible[:, :, :length])

        # The slice of all rows would be copied to memory first; the slice of a few rows stays in the CPU's cache.
        most = min(CACHED_AT_ONCE // (2 * kv_heads * head_dim), SCORES_AT_ONCE // (chunk * heads)) // length
        return lambda *arrays: _by_rows(most, attend_first, *arrays)

    quarter = jnp.sum(filled > jnp.array(lengths[:-1]))
    return jax.lax.switch(quarter, [over(length) for length in lengths], query, key, value, visible)


def _by_rows(most: int, function: Callable[..., jax.Array], query: jax.Array, *arrays: jax.Array) -> jax.Array:
    """Applies a function of rows to at most `most` rows at a time; an array with a single row is broadcast."""
    batch = len(query)
    at_once = max(n for n in range(1, max(most, 1) + 1) if batch % n == 0)
    arrays = tuple(jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in arrays)
    parts = [x.reshape(-1, at_once, *x.shape[1:]) for x in (query, *arrays)]
    return jax.lax.map(lambda part: function(*part), parts).reshape(query.shape)


def visible(positions: jax.Array, length: int) -> jax.Array:
    """Causal mask bool[B, C, S] over `length` positions for queries at `positions` i32[B, C]."""
    return jnp.arange(length) <= positions[:, :, None]


def within(window: jax.Array, positions: jax.Array, length: int) -> jax.Array:
    """Sliding-window mask bool[B, C, S]: the latest `window` i32[] positions of a query; all if `window` is 0."""
    return (window == 0) | (jnp.arange(length) > positions[:, :, None] - window)
