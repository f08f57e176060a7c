"""Attention over the keys of a chunk or of a cache, for a few rows at a time to bound memory.

Shapes: `B` rows, `C` tokens of a chunk, `S` cache or sequence positions, `H` query heads, `K` key-value heads, `Dh`
head dimension. The softmax is computed in f32.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.models.matmul import attention_scores, float32_product

SCORES_AT_ONCE = 2**22
"""Largest number of attention scores that `attend_by_rows` computes at a time: 16 MiB."""
LARGE_CACHE = 2**24
"""Size of a layer's keys and values, in numbers (64 MiB), from which `attend_cached` reads only the filled part."""
CACHED_AT_ONCE = 2**20
"""Largest number of keys and values that it then reads at a time: 4 MiB, which fit in a CPU's cache."""

Query = Float[Array, "B C H Dh"]
Keys = Float[Array, "B K S Dh"]
Visible = Bool[Array, "#B C S"]
"""The positions that each query sees, at least one."""


def attend(query: Query, key: Keys, value: Keys, visible: Visible) -> Query:
    """Grouped-query attention (Ainslie et al. 2023): query head h reads key-value head h // (H / K)."""
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


def attend_by_rows(query: Query, key: Keys, value: Keys, visible: Visible) -> Query:
    """Like `attend`, but for a few rows at a time, at most `SCORES_AT_ONCE` scores; the backward pass recomputes them.

    More might not fit in memory, and scores that do not fit in a CPU's cache take three times as long.
    """
    batch, chunk, heads, _ = query.shape
    most = SCORES_AT_ONCE // (chunk * heads * key.shape[2])
    if chunk == 1 or most >= batch:
        return jax.checkpoint(attend)(query, key, value, visible)
    return by_rows(most, jax.checkpoint(attend), query, key, value, visible)


def attend_cached(query: Query, key: Keys, value: Keys, visible: Visible, filled: Int[Array, ""]) -> Query:
    """Like `attend`, over a cache of which real queries see only the first `filled` positions.

    From `LARGE_CACHE` numbers on, a CPU reads only these positions, rounded up to the next quarter of the cache. For a
    smaller cache the copies would cost more than they save.
    """
    if key.size + value.size < LARGE_CACHE:
        return attend_by_rows(query, key, value, visible)
    arrays = (query, key, value, visible)
    return jax.lax.platform_dependent(*arrays, cpu=lambda *x: _attend_quarters(filled, *x), default=attend_by_rows)


def _attend_quarters(filled, query, key, value, visible):
    _, chunk, heads, head_dim = query.shape
    kv_heads, size = key.shape[1:3]
    lengths = [-(-size * quarters // 4) for quarters in range(1, 5)]

    def over(length):
        def attend_first(query, key, value, visible):
            return attend(query, key[:, :, :length], value[:, :, :length], visible[:, :, :length])

        # The slice of all rows would be copied to memory first; the slice of a few rows stays in the CPU's cache.
        most = min(CACHED_AT_ONCE // (2 * kv_heads * head_dim), SCORES_AT_ONCE // (chunk * heads)) // length
        return lambda *arrays: by_rows(most, attend_first, *arrays)

    quarter = jnp.sum(filled > jnp.array(lengths[:-1]))
    return jax.lax.switch(quarter, [over(length) for length in lengths], query, key, value, visible)


def by_rows(most: int, function: Callable[..., jax.Array], query: jax.Array, *arrays: jax.Array) -> jax.Array:
    """Applies a function of rows to at most `most` rows at a time; an array with a single row is broadcast."""
    batch = len(query)
    at_once = max(n for n in range(1, max(most, 1) + 1) if batch % n == 0)
    arrays = tuple(jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in arrays)
    parts = [x.reshape(-1, at_once, *x.shape[1:]) for x in (query, *arrays)]
    return jax.lax.map(lambda part: function(*part), parts).reshape(query.shape)


def visible(positions: Int[Array, "B C"], length: int) -> Bool[Array, "B C S"]:
    """Causal mask over `length` positions for queries at `positions`."""
    return jnp.arange(length) <= positions[:, :, None]


def within(window: Int[Array, ""], positions: Int[Array, "B C"], length: int) -> Bool[Array, "B C S"]:
    """Sliding-window mask: the latest `window` positions of a query; all if `window` is 0."""
    return (window == 0) | (jnp.arange(length) > positions[:, :, None] - window)
