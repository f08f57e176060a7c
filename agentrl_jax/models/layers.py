"""The mathematics of a decoder layer as functions of arrays.

Letters: `B` rows, `C` tokens of a chunk, `S` cache or sequence positions, `D` width, `H` query heads, `K` key-value
heads, `Dh` head dimension, `F` width of the feed-forward layer. Norms, rotary angles and softmax are computed in f32.
"""

import jax
import jax.numpy as jnp
import numpy as np


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """Root-mean-square norm (Zhang and Sennrich 2019) over the last axis of `x` [..., D]; `scale` is [D]."""
    x32 = x.astype(jnp.float32)
    normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (normed * scale).astype(x.dtype)


def rotary_angles(positions: jax.Array, head_dim: int, theta: float) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of the rotary embedding (Su et al. 2021), each f32[..., 1, Dh/2], for i32[...] positions."""
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
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
    scores = jnp.matmul(rows, key.swapaxes(2, 3), preferred_element_type=jnp.float32)
    # An added bias and a division after the product: a CPU takes 3.7 times as long for a choice and a softmax.
    bias = jnp.where(visible, 0.0, jnp.finfo(jnp.float32).min / 2)
    scores += jnp.tile(bias, (1, shared, 1))[:, None]
    weights = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    mixed = jnp.matmul(weights.astype(value.dtype), value, preferred_element_type=jnp.float32)
    mixed = mixed / jnp.sum(weights, axis=-1, keepdims=True)
    mixed = mixed.reshape(batch, kv_heads, shared, chunk, head_dim).transpose(0, 3, 1, 2, 4)
    return mixed.reshape(batch, chunk, heads, head_dim).astype(query.dtype)


def swiglu(x: jax.Array, gate: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Gated feed-forward layer (Shazeer 2020): `x` [..., D], `gate` and `up` [D, F], `down` [F, D]."""
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down
