"""The mathematics of a decoder layer as functions of arrays.

Letters: `B` rows, `C` tokens of a chunk, `S` cache or sequence positions, `D` width, `H` query heads, `K` key-value
heads, `Dh` head dimension, `F` width of the feed-forward layer. Norms, rotary angles and softmax are computed in f32.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from agentrl_jax.models.shape import DecoderConfig


class Transposed(struct.PyTreeNode):
    """A matrix [In, Out] kept as [Out, In].

    A CPU copies the second operand of a product to arrange it. With few rows that must not be the matrix.
    """

    matrix: jax.Array

    def __rmatmul__(self, x: jax.Array) -> jax.Array:
        """`x` [M, In] times the matrix: [M, Out]."""
        many = 8 * len(x) > min(self.matrix.shape)
        return x @ self.matrix.T if many else (self.matrix @ x.T).T


@jax.custom_vjp
def _bfloat16_product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """`x` [M, In] times `matrix` [In, Out], both bfloat16.

    A CPU has bfloat16 instructions for products that stay in f32 until they are rounded, of operands as they lie; it
    converts all others first, which takes three to four times as long. So the backward pass lays operands out anew.
    """

    def rounded(x, matrix):
        return jnp.matmul(x, matrix, preferred_element_type=jnp.float32).astype(x.dtype)

    return jax.lax.platform_dependent(x, matrix, cpu=rounded, default=jnp.matmul)


def _bfloat16_product_forward(x, matrix):
    return _bfloat16_product(x, matrix), (x, matrix)


def _bfloat16_product_backward(operands, cotangent):
    x, matrix = operands
    return _bfloat16_product(cotangent, _laid_out_transposed(matrix)), _bfloat16_product(
        _laid_out_transposed(x), cotangent
    )


_bfloat16_product.defvjp(_bfloat16_product_forward, _bfloat16_product_backward)


def _laid_out_transposed(matrix: jax.Array) -> jax.Array:
    """The transpose of a matrix, on a CPU as a copy: a vector lies in one way only, and the barrier keeps it one."""

    def copied(matrix):
        return jax.lax.optimization_barrier(matrix.T.reshape(-1)).reshape(matrix.shape[::-1])

    return jax.lax.platform_dependent(matrix, cpu=copied, default=jnp.transpose)


Weights = Mapping[str, Any]
"""The parameters of one layer by name, of the activations' type: arrays, matrices also as `Transposed`."""

SCORES_AT_ONCE = 2**22
"""Most attention scores that `attend_by_rows` makes at a time: 16 MiB."""
LARGE_CACHE = 2**24
"""Numbers of a layer's keys and values (64 MiB) from which on `attend_cached` reads no more of them than it needs."""
CACHED_AT_ONCE = 2**20
"""Most of those numbers that it reads at a time then: 4 MiB, which stay in a CPU's own cache."""


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm (Zhang and Sennrich 2019) over the last axis of `x` [..., D]; `scale` is [D]."""
    x32 = x.astype(jnp.float32)
    normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (normed * scale).astype(x.dtype)


def rotary_frequencies(config: DecoderConfig) -> jax.Array:
    """Frequencies f32[Dh/2] of the rotary embedding (Su et al. 2021), stretched where the shape says so."""
    frequencies = config.rope_theta ** (-jnp.arange(0, config.head_dim, 2, dtype=jnp.float32) / config.head_dim)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    turns = scaling.original_positions * frequencies / (2 * jnp.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = jnp.clip(kept, 0.0, 1.0)
    return kept * frequencies + (1.0 - kept) * frequencies / scaling.factor


def rotary_angles(positions: jax.Array, config: DecoderConfig) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of the rotary embedding, each f32[..., 1, Dh/2], for i32[...] positions."""
    angles = positions[..., None, None].astype(jnp.float32) * rotary_frequencies(config)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Applies rotary angles to `x` [..., H, Dh], pairing dimension i with i + Dh/2."""
    half = x.shape[-1] // 2
    cos, sin = (jnp.concatenate([part, part], axis=-1) for part in angles)
    # The swap of halves (x1, x2) -> (-x2, x1) as a product with a constant: slices of a few numbers and their gradients
    # cost several times more than the whole layer's products on a CPU.
    swap = np.roll(np.diag(np.repeat([1.0, -1.0], half)), half, axis=1)
    x32 = x.astype(jnp.float32)
    return (x32 * cos + (x32 @ jnp.asarray(swap, jnp.float32)) * sin).astype(x.dtype)


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
    if chunk == 1 and shared > 1:
        # Few queries: the keys go first for the reason of `Transposed`; without the barrier they would go second again.
        scores = jnp.matmul(key, rows.swapaxes(2, 3), preferred_element_type=jnp.float32)
        scores = jax.lax.optimization_barrier(scores).swapaxes(2, 3)
    else:
        scores = jnp.matmul(rows, key.swapaxes(2, 3), preferred_element_type=jnp.float32)
    # An added bias and a division after the product: a CPU takes 3.7 times as long for a choice and a softmax.
    bias = jnp.where(visible, 0.0, jnp.finfo(jnp.float32).min / 2)
    scores += jnp.tile(bias, (1, shared, 1))[:, None]
    weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    mixed = jnp.matmul(weights.astype(value.dtype), value, preferred_element_type=jnp.float32)
    mixed = mixed / jnp.sum(weights, axis=-1, keepdims=True)
    mixed = mixed.reshape(batch, kv_heads, shared, chunk, head_dim).transpose(0, 3, 1, 2, 4)
    return mixed.reshape(batch, chunk, heads, head_dim).astype(query.dtype)


def attend_by_rows(query: jax.Array, key: jax.Array, value: jax.Array, visible: jax.Array) -> jax.Array:
    """As `attend`, but of as few rows at a time as `SCORES_AT_ONCE` asks for.

    Scores of all rows of a chunk and a long cache would not fit in memory, and on a CPU those that leave its own cache
    take three times as long. A backward pass makes them again. A single query has few scores, whatever its rows.
    """
    batch, chunk, heads, _ = query.shape
    most = SCORES_AT_ONCE // (chunk * heads * key.shape[2])
    if chunk == 1 or most >= batch:
        return jax.checkpoint(attend)(query, key, value, visible)
    return _by_rows(most, jax.checkpoint(attend), query, key, value, visible)


def attend_cached(
    query: jax.Array, key: jax.Array, value: jax.Array, visible: jax.Array, filled: jax.Array
) -> jax.Array:
    """As `attend` over a cache of which no query that counts sees more than the first `filled` i32[] positions.

    Of a `LARGE_CACHE` a CPU reads that many, rounded up to the next quarter. A smaller one it holds in its own cache,
    where the copies that this takes cost more than they save.
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

        # A part of all rows would be written out before it is read; that of a few rows stays near.
        most = min(CACHED_AT_ONCE // (2 * kv_heads * head_dim), SCORES_AT_ONCE // (chunk * heads)) // length
        return lambda *arrays: _by_rows(most, attend_first, *arrays)

    quarter = jnp.sum(filled > jnp.array(lengths[:-1]))
    return jax.lax.switch(quarter, [over(length) for length in lengths], query, key, value, visible)


def _by_rows(most: int, function: Callable[..., jax.Array], query: jax.Array, *arrays: jax.Array) -> jax.Array:
    """A function of rows, of at most `most` of them at a time; an array of a single row stands for all."""
    batch = len(query)
    at_once = max(n for n in range(1, max(most, 1) + 1) if batch % n == 0)
    arrays = tuple(jnp.broadcast_to(x, (batch, *x.shape[1:])) for x in arrays)
    parts = [x.reshape(-1, at_once, *x.shape[1:]) for x in (query, *arrays)]
    return jax.lax.map(lambda part: function(*part), parts).reshape(query.shape)


def visible(positions: jax.Array, length: int) -> jax.Array:
    """Which of `length` positions a query at `positions` i32[B, C] sees: itself and those before, bool[B, C, S]."""
    return jnp.arange(length) <= positions[:, :, None]


def within(window: jax.Array, positions: jax.Array, length: int) -> jax.Array:
    """Which of `length` positions lie in a query's `window` i32[] of latest ones, bool[B, C, S]; all if it is 0."""
    return (window == 0) | (jnp.arange(length) > positions[:, :, None] - window)


def project(
    weights: Weights, config: DecoderConfig, x: jax.Array, angles: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries [B, C, H, Dh], keys and values [B, C, K, Dh] of a layer's input `x` [B, C, D]."""
    normed = rms_norm(x, weights["attention_norm"], config.norm_eps)
    query, key, value = (
        _product(weights, name, normed).reshape(*x.shape[:-1], -1, config.head_dim)
        for name in ("query", "key", "value")
    )
    if config.qk_norm:
        query = rms_norm(query, weights["query_norm"], config.norm_eps)
        key = rms_norm(key, weights["key_norm"], config.norm_eps)
    return rotate(query, angles), rotate(key, angles), value


def finish(weights: Weights, config: DecoderConfig, x: jax.Array, mixed: jax.Array) -> jax.Array:
    """Adds attention `mixed` [B, C, H, Dh] and the gated feed-forward layer (Shazeer 2020) to `x` [B, C, D]."""
    x = x + _product(weights, "output", mixed.reshape(*x.shape[:-1], -1))
    normed = rms_norm(x, weights["mlp_norm"], config.norm_eps)
    gated = jax.nn.silu(_product(weights, "gate", normed)) * _product(weights, "up", normed)
    return x + _product(weights, "down", gated)


def _product(weights: Weights, name: str, x: jax.Array) -> jax.Array:
    """`x` [..., In] times the matrix called `name` [In, Out], with its bias and its low-rank adapter if it has them."""
    # Rows of one matrix: for a gradient over two axes at once a CPU would copy what it multiplies.
    rows = x.reshape(-1, x.shape[-1])
    times = _bfloat16_product if x.dtype == jnp.bfloat16 else operator.matmul
    product = times(rows, weights[name])
    if f"{name}_bias" in weights:
        product += weights[f"{name}_bias"]
    if f"{name}_lora_a" in weights:
        product += times(times(rows, weights[f"{name}_lora_a"]), weights[f"{name}_lora_b"])
    return product.reshape(*x.shape[:-1], -1)
