"""Converts a `DecoderConfig` to Hugging Face's `config.json`, readable by transformers 4 and 5."""

import dataclasses
from typing import Any

from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.models.io.hf_config import ARCHITECTURES, PretrainedConfig, parse_config
from agentrl_jax.models.shape import DecoderConfig

_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def describe(
    decoder: DecoderConfig,
    *,
    max_positions: int,
    bos_token_id: int | None = None,
    eos_token_id: int | None = None,
    pad_token_id: int | None = None,
) -> PretrainedConfig:
    """A `PretrainedConfig` for any decoder, as a `llama`, `qwen2`, `qwen3` or `mistral` model.

    Args:
        decoder: the shape.
        max_positions: number of positions that it is trained for.
        bos_token_id: token at the beginning of a text.
        eos_token_id: token at the end of a text.
        pad_token_id: token for padding.

    Raises:
        WeightsError: no model type of Hugging Face has this combination of biases, norms and windows.
    """
    model_type = _model_type(decoder)
    raw: dict[str, Any] = {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
        "pad_token_id": pad_token_id,
        "vocab_size": decoder.vocab_size,
        "hidden_size": decoder.embed_dim,
        "intermediate_size": decoder.mlp_width,
        "num_hidden_layers": decoder.num_layers,
        "num_attention_heads": decoder.num_heads,
        "num_key_value_heads": decoder.num_kv_heads,
        "head_dim": decoder.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": max_positions,
        "rms_norm_eps": decoder.norm_eps,
        "tie_word_embeddings": decoder.tied_embeddings,
        "rope_theta": decoder.rope_theta,
        "rope_scaling": _rope_scaling(decoder),
    }
    if model_type in ("llama", "qwen3"):
        raw["attention_bias"] = decoder.output_bias
    if model_type == "llama":
        raw["mlp_bias"] = decoder.mlp_bias
    else:
        raw |= _windows(decoder, model_type)
    made = parse_config(raw, f"{model_type} configuration")
    if made.decoder != _plain(decoder):
        raise WeightsError(f"{decoder}: comes back from a {model_type} configuration as {made.decoder}")
    return made


def written_config(config: PretrainedConfig, *, dtype: str) -> dict[str, Any]:
    """The content of `config.json` for weights of dtype `dtype`.

    This is the original content, unless the decoder has changed since it was read: then it is newly generated.
    """
    raw = dict(config.raw)
    if parse_config(raw, "the configuration that the model came with").decoder != _plain(config.decoder):
        tokens = {key: raw.get(key) for key in _TOKENS}
        raw = dict(describe(config.decoder, max_positions=config.max_positions).raw) | tokens
    raw.pop("torch_dtype", None)
    raw.pop("dtype", None)
    return raw | {"torch_dtype": dtype}  # transformers 4 reads only this name, 5 reads it too


def _plain(decoder: DecoderConfig) -> DecoderConfig:
    """The shape as a file can store it: without the activations' dtype, and with a single form for "no windows"."""
    return dataclasses.replace(decoder, dtype="float32", windows=decoder.windows if any(decoder.windows) else ())


def _model_type(decoder: DecoderConfig) -> str:
    windowed = any(decoder.windows)
    if decoder.mlp_bias and (decoder.qk_norm or windowed):
        raise WeightsError(f"{decoder}: no model type has mlp_bias beside qk_norm or windows")
    if decoder.qk_norm and decoder.qkv_bias == decoder.output_bias:
        return "qwen3"
    if decoder.qkv_bias and not (decoder.output_bias or decoder.mlp_bias or decoder.qk_norm):
        return "qwen2"
    if windowed and not (decoder.qkv_bias or decoder.output_bias or decoder.qk_norm) and len({*decoder.windows}) == 1:
        return "mistral"
    if decoder.qk_norm or decoder.qkv_bias != decoder.output_bias or windowed:
        raise WeightsError(f"{decoder}: no model type has these biases, norms and windows together")
    return "llama"


def _rope_scaling(decoder: DecoderConfig) -> dict[str, Any] | None:
    scaling = decoder.rope_scaling
    if scaling is None:
        return None
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_positions,
    }


def _windows(decoder: DecoderConfig, model_type: str) -> dict[str, Any]:
    sizes = {size for size in decoder.windows if size}
    if len(sizes) > 1:
        raise WeightsError(f"{decoder}: windows of sizes {sorted(sizes)}; a {model_type} model has a single size")
    window = sizes.pop() if sizes else None
    if model_type == "mistral":
        return {"sliding_window": window}
    slides = [bool(size) for size in decoder.windows] or [False] * decoder.num_layers
    return {
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
        # For older transformers without `layer_types`: the first layer from which on all layers have a window.
        "max_window_layers": max((i + 1 for i, slide in enumerate(slides) if not slide), default=0),
    }
