"""Converts a `DecoderConfig` to Hugging Face's `config.json`, readable by transformers 4 and 5."""

import dataclasses
from typing import Any

from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.models.io.hf_config import ARCHITECTURES, GENERATION, PretrainedConfig, parse_config
from agentrl_jax.models.shape import DecoderConfig


def describe(
    decoder: DecoderConfig,
    *,
    max_positions: int,
    bos_token_id: int | None = None,
    eos_token_id: int | None = None,
    pad_token_id: int | None = None,
) -> PretrainedConfig:
    """A `PretrainedConfig` for any decoder, as a `llama`, `qwen2`, `qwen3` or `mistral` model.

    Combinations of biases, norms and windows that none of them has are refused. `max_positions` is the number of
    positions that the decoder is trained for.
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
    config = parse_config(raw, f"{model_type} configuration")
    if config.decoder != _plain(decoder):
        raise WeightsError.at(decoder, f"is read back from a {model_type} configuration as {config.decoder}")
    return config


def written_config(config: PretrainedConfig, *, dtype: str) -> dict[str, Any]:
    """The content of `config.json` for weights of `dtype`: the original, or a new one if the decoder has changed.

    Values for generation are left out: vLLM and transformers would use them where there is no generation_config.json.
    """
    raw = dict(config.raw)
    if parse_config(raw, "the model's original configuration").decoder != _plain(config.decoder):
        tokens = {key: raw.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        raw = dict(describe(config.decoder, max_positions=config.max_positions).raw) | tokens
    # Transformers 4 reads only these names, 5 reads them too.
    if raw.pop("rope_parameters", None):
        raw |= {"rope_theta": config.decoder.rope_theta, "rope_scaling": _rope_scaling(config.decoder)}
    left = {"dtype", "torch_dtype", *GENERATION}
    return {key: value for key, value in raw.items() if key not in left} | {"torch_dtype": dtype}


def _plain(decoder: DecoderConfig) -> DecoderConfig:
    """The shape as a file can store it: without settings of the computation, and with one form for "no windows"."""
    windows = decoder.windows if any(decoder.windows) else ()
    plain: dict[str, Any] = {"dtype": "float32", "cache_dtype": "", "decode_dtype": "", "attention": "auto"}
    return dataclasses.replace(decoder, **plain, windows=windows)


def _model_type(decoder: DecoderConfig) -> str:
    windowed = any(decoder.windows)
    if decoder.mlp_bias and (decoder.qk_norm or windowed):
        raise WeightsError.at(decoder, "no model type has mlp_bias together with qk_norm or windows")
    if decoder.qk_norm and decoder.qkv_bias == decoder.output_bias:
        return "qwen3"
    if decoder.qkv_bias and not (decoder.output_bias or decoder.mlp_bias or decoder.qk_norm):
        return "qwen2"
    if windowed and not (decoder.qkv_bias or decoder.output_bias or decoder.qk_norm) and len({*decoder.windows}) == 1:
        return "mistral"
    if decoder.qk_norm or decoder.qkv_bias != decoder.output_bias or windowed:
        raise WeightsError.at(decoder, "no model type has these biases, norms and windows together")
    return "llama"


def _rope_scaling(decoder: DecoderConfig) -> dict[str, Any] | None:
    if decoder.rope_scaling is None:
        return None
    values = dataclasses.asdict(decoder.rope_scaling)
    positions = values.pop("original_positions")
    return {"rope_type": "llama3", **values, "original_max_position_embeddings": positions}


def _windows(decoder: DecoderConfig, model_type: str) -> dict[str, Any]:
    sizes = {size for size in decoder.windows if size}
    if len(sizes) > 1:
        raise WeightsError.at(decoder, f"windows of sizes {sorted(sizes)}; a {model_type} model has a single size")
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
