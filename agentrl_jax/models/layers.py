"""The mathematics of a decoder layer as functions of arrays.

Shapes: `B` rows, `C` tokens of a chunk, `D` embedding dimension, `H` query heads, `K` key-value heads, `Dh` head
dimension, `half` Dh / 2. Norms and rotary angles are computed in f32.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from agentrl_jax.models.matmul import matmul, rotate_half
from agentrl_jax.models.shape import DecoderConfig

Weights = Mapping[str, Any]
"""The parameters of one layer by name, in the activations' dtype: arrays; matrices may be `matmul.Transposed`."""

Angles = tuple[Float[Array, "... 1 half"], Float[Array, "... 1 half"]]
"""Cosine and sine of the rotary embedding."""


def rms_norm(x: Float[Array, "... D"], scale: Float[Array, " D"], eps: float) -> Float[Array, "... D"]:
    """Root-mean-square norm (Zhang and Sennrich 2019) over the last axis."""
    x32 = x.astype(jnp.float32)
    normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (normed * scale).astype(x.dtype)


def rotary_frequencies(config: DecoderConfig) -> Float[Array, " half"]:
    """Frequencies of the rotary embedding (Su et al. 2021), scaled if `rope_scaling` is set."""
    frequencies = config.rope_theta ** (-jnp.arange(0, config.head_dim, 2, dtype=jnp.float32) / config.head_dim)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    turns = scaling.original_positions * frequencies / (2 * jnp.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
    return kept * frequencies + (1.0 - kept) * frequencies / scaling.factor


def rotary_angles(positions: Int[Array, "..."], config: DecoderConfig) -> Angles:
    """Cosine and sine of the rotary embedding of positions."""
    angles = positions[..., None, None].astype(jnp.float32) * rotary_frequencies(config)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Float[Array, "... H Dh"], angles: Angles) -> Float[Array, "... H Dh"]:
    """Applies rotary angles, pairing dimension i with i + Dh/2."""
    cos, sin = (jnp.concatenate([part, part], axis=-1) for part in angles)
    x32 = x.astype(jnp.float32)
    return (x32 * cos + rotate_half(x32) * sin).astype(x.dtype)


def project(
    weights: Weights, config: DecoderConfig, x: Float[Array, "B C D"], angles: Angles
) -> tuple[Float[Array, "B C H Dh"], Float[Array, "B C K Dh"], Float[Array, "B C K Dh"]]:
    """Queries, keys and values of a layer's input."""
    normed = rms_norm(x, weights["attention_norm"], config.norm_eps)
    query, key, value = (
        _linear(weights, name, normed).reshape(*x.shape[:-1], -1, config.head_dim) for name in ("query", "key", "value")
    )
    if config.qk_norm:
        query = rms_norm(query, weights["query_norm"], config.norm_eps)
        key = rms_norm(key, weights["key_norm"], config.norm_eps)
    return rotate(query, angles), rotate(key, angles), value


def finish(
    weights: Weights, config: DecoderConfig, x: Float[Array, "B C D"], mixed: Float[Array, "B C H Dh"]
) -> Float[Array, "B C D"]:
    """Adds the output of attention and the gated feed-forward layer (Shazeer 2020) to `x`."""
    x = x + _linear(weights, "output", mixed.reshape(*x.shape[:-1], -1))
    normed = rms_norm(x, weights["mlp_norm"], config.norm_eps)
    gated = jax.nn.silu(_linear(weights, "gate", normed)) * _linear(weights, "up", normed)
    if x.shape[1] == 1:
        # For one token a TPU would compute `up` inside the product with `down`, in small parts, which takes longer.
        gated = jax.lax.platform_dependent(gated, tpu=jax.lax.optimization_barrier, default=lambda gated: gated)
    return x + _linear(weights, "down", gated)


def _linear(weights: Weights, name: str, x: Float[Array, "... In"]) -> Float[Array, "... Out"]:
    """`x` times the matrix `name`, plus its bias and its low-rank adapter if there are any."""
    product = matmul(x, weights[name])
    if f"{name}_bias" in weights:
        product += weights[f"{name}_bias"]
    if f"{name}_lora_a" in weights:
        product += matmul(matmul(x, weights[f"{name}_lora_a"]), weights[f"{name}_lora_b"])
    return product
