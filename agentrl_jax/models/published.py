"""Shapes of published models, taken from their `config.json`, for planning without their weights."""

from typing import Any

from agentrl_jax.models.shape import DecoderConfig, Llama3Scaling


def _qwen2(layers: int, embed_dim: int, mlp: int, heads: int, kv_heads: int, **more: Any) -> DecoderConfig:
    shape: dict[str, Any] = dict(vocab_size=151_936, rope_theta=1e6, norm_eps=1e-6, qkv_bias=True, head_dim=128)
    shape |= dict(num_layers=layers, embed_dim=embed_dim, mlp_width=mlp, num_heads=heads, num_kv_heads=kv_heads)
    return DecoderConfig(**(shape | more))


def _qwen3(layers: int, embed_dim: int, mlp: int, heads: int, **more: Any) -> DecoderConfig:
    return _qwen2(layers, embed_dim, mlp, heads, 8, qkv_bias=False, qk_norm=True, **more)


def _llama3(layers: int, embed_dim: int, mlp: int, heads: int, factor: float, **more: Any) -> DecoderConfig:
    scaling = Llama3Scaling(factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192)
    shape: dict[str, Any] = dict(vocab_size=128_256, rope_theta=5e5, norm_eps=1e-5, rope_scaling=scaling, head_dim=128)
    shape |= dict(num_layers=layers, embed_dim=embed_dim, mlp_width=mlp, num_heads=heads, num_kv_heads=8)
    return DecoderConfig(**(shape | more))


PUBLISHED: dict[str, DecoderConfig] = {
    "smollm2-135m": DecoderConfig(
        vocab_size=49_152,
        num_layers=30,
        embed_dim=576,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        mlp_width=1536,
        rope_theta=1e5,
        norm_eps=1e-5,
    ),
    "qwen2.5-0.5b": _qwen2(24, 896, 4864, 14, 2, head_dim=64),
    "qwen2.5-1.5b": _qwen2(28, 1536, 8960, 12, 2),
    "qwen2.5-3b": _qwen2(36, 2048, 11_008, 16, 2),
    "qwen2.5-7b": _qwen2(28, 3584, 18_944, 28, 4, vocab_size=152_064, tied_embeddings=False),
    "qwen3-0.6b": _qwen3(28, 1024, 3072, 16),
    "qwen3-1.7b": _qwen3(28, 2048, 6144, 16),
    "qwen3-4b": _qwen3(36, 2560, 9728, 32),
    "qwen3-8b": _qwen3(36, 4096, 12_288, 32, tied_embeddings=False),
    "llama-3.2-1b": _llama3(16, 2048, 8192, 32, 32.0, head_dim=64),
    "llama-3.2-3b": _llama3(28, 3072, 8192, 24, 32.0),
    "llama-3.1-8b": _llama3(32, 4096, 14_336, 32, 8.0, tied_embeddings=False),
}
"""Decoders by name; activations are f32 unless `dtype` is replaced."""
