"""Shapes of published models, taken from their `config.json`, for planning without their weights."""

from typing import Any

from agentrl_jax.models.shape import DecoderConfig, Llama3Scaling


def _decoder(layers: int, embed_dim: int, mlp: int, heads: int, kv_heads: int, **more: Any) -> DecoderConfig:
    sizes: dict[str, Any] = dict(num_layers=layers, embed_dim=embed_dim, mlp_width=mlp)
    return DecoderConfig(**{**sizes, "num_heads": heads, "num_kv_heads": kv_heads, "head_dim": 128} | more)


def _llama3(factor: float) -> dict[str, Any]:
    scaling = Llama3Scaling(factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192)
    return dict(vocab_size=128_256, rope_theta=5e5, norm_eps=1e-5, rope_scaling=scaling)


_QWEN2: dict[str, Any] = dict(vocab_size=151_936, rope_theta=1e6, norm_eps=1e-6, qkv_bias=True)
_QWEN3: dict[str, Any] = dict(vocab_size=151_936, rope_theta=1e6, norm_eps=1e-6, qk_norm=True)

PUBLISHED: dict[str, DecoderConfig] = {
    "smollm2-135m": _decoder(30, 576, 1536, 9, 3, vocab_size=49_152, rope_theta=1e5, norm_eps=1e-5, head_dim=64),
    "qwen2.5-0.5b": _decoder(24, 896, 4864, 14, 2, **_QWEN2, head_dim=64),
    "qwen2.5-1.5b": _decoder(28, 1536, 8960, 12, 2, **_QWEN2),
    "qwen2.5-3b": _decoder(36, 2048, 11_008, 16, 2, **_QWEN2),
    "qwen2.5-7b": _decoder(28, 3584, 18_944, 28, 4, **_QWEN2 | dict(vocab_size=152_064, tied_embeddings=False)),
    "qwen3-0.6b": _decoder(28, 1024, 3072, 16, 8, **_QWEN3),
    "qwen3-1.7b": _decoder(28, 2048, 6144, 16, 8, **_QWEN3),
    "qwen3-4b": _decoder(36, 2560, 9728, 32, 8, **_QWEN3),
    "qwen3-8b": _decoder(36, 4096, 12_288, 32, 8, **_QWEN3, tied_embeddings=False),
    "llama-3.2-1b": _decoder(16, 2048, 8192, 32, 8, **_llama3(32.0), head_dim=64),
    "llama-3.2-3b": _decoder(28, 3072, 8192, 24, 8, **_llama3(32.0)),
    "llama-3.1-8b": _decoder(32, 4096, 14_336, 32, 8, **_llama3(8.0), tied_embeddings=False),
}
"""Decoders by name; activations are f32 unless `dtype` is replaced."""
