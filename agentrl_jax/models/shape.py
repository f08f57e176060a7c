"""The shape of a decoder: all static settings of the model."""

import dataclasses
from typing import Literal

from agentrl_jax.errors import BadValue

Attention = Literal["auto", "blocks", "cudnn", "splash"]
"""Implementations of attention over whole rows, see `row_attention.attention`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Rotary scaling of Llama 3.1 and later: lower frequencies, for contexts longer than those of pre-training.

    Wavelengths above `original_positions / low_freq_factor` are stretched by `factor`, those below
    `original_positions / high_freq_factor` are kept, and those between are blended.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int

    def __post_init__(self):
        low, high = self.low_freq_factor, self.high_freq_factor
        if low >= high:
            raise BadValue(
                f"low_freq_factor {low} must be below high_freq_factor {high}", key="low_freq_factor", value=low
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Shape of a decoder (pre-norm, rotary positions, grouped-query attention, SwiGLU).

    Attributes:
        num_kv_heads: number of key and value heads; divides `num_heads`, the number of query heads.
        head_dim: often but not always embed_dim / num_heads; even.
        rope_theta: base of the rotary frequencies.
        tied_embeddings: the embedding is also the output matrix.
        qkv_bias: the query, key and value products have a bias (Qwen2).
        output_bias: the attention's output product has a bias (Llama with attention_bias).
        mlp_bias: the three products of the feed-forward layer have a bias.
        qk_norm: RMSNorm is applied to the queries and keys of each head before rotation (Qwen3).
        windows: size of the sliding attention window of each layer, in positions, including the query's own; 0: no
            window. Empty: no window in any layer.
        dtype: dtype of activations and products; norms, rotary angles, softmax and logits are always f32.
        cache_dtype: dtype of cached keys and values; empty: `dtype`; int8: `quantized.Quantized`.
        decode_dtype: dtype of the matrices and the embedding that `cached_decoder` reads; empty: `dtype`; int8:
            `quantized.Quantized`.
        attention: implementation of attention over whole rows; no part of the mathematics.
    """

    vocab_size: int
    num_layers: int
    embed_dim: int
    num_heads: int
    num_kv_heads: int
    mlp_width: int
    head_dim: int
    rope_theta: float = 10_000.0
    rope_scaling: Llama3Scaling | None = None
    norm_eps: float = 1e-6
    tied_embeddings: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int, ...] = ()
    dtype: str = "float32"
    cache_dtype: str = ""
    decode_dtype: str = ""
    attention: Attention = "auto"

    def __post_init__(self):
        if self.head_dim % 2:
            raise BadValue(
                f"head dimension {self.head_dim} must be even for rotary positions",
                key="head dimension",
                value=self.head_dim,
            )
        if self.num_heads % self.num_kv_heads:
            raise BadValue(
                f"{self.num_heads} heads cannot be shared evenly by {self.num_kv_heads} key-value heads",
                key="heads",
                value=self.num_heads,
            )
        if self.windows and len(self.windows) != self.num_layers:
            raise BadValue(
                f"{len(self.windows)} windows for {self.num_layers} layers; give one for each, or none",
                key="windows",
                value=len(self.windows),
            )

    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter of one layer, by name."""
        heads, kv_heads = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            "attention_norm": (self.embed_dim,),
            "query": (self.embed_dim, heads),
            "key": (self.embed_dim, kv_heads),
            "value": (self.embed_dim, kv_heads),
            "output": (heads, self.embed_dim),
            "mlp_norm": (self.embed_dim,),
            "gate": (self.embed_dim, self.mlp_width),
            "up": (self.embed_dim, self.mlp_width),
            "down": (self.mlp_width, self.embed_dim),
        }
        biased = (
            (("query", "key", "value") if self.qkv_bias else ())
            + (("output",) if self.output_bias else ())
            + (("gate", "up", "down") if self.mlp_bias else ())
        )
        shapes |= {f"{name}_bias": shapes[name][1:] for name in biased}
        if self.qk_norm:
            shapes |= {"query_norm": (self.head_dim,), "key_norm": (self.head_dim,)}
        return shapes
