"""Loads models from GGUF files, the format of llama.cpp, which contain weights, shape and tokenizer."""

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from agentrl_jax.models import layers
from agentrl_jax.models.io.config_fields import Fields
from agentrl_jax.models.io.errors import WeightsError, naming
from agentrl_jax.models.io.gguf_format import GgufFile, open_gguf
from agentrl_jax.models.io.gguf_tokenizer import convert_tokenizer
from agentrl_jax.models.io.hf_config import MAX_SIZES, PretrainedConfig
from agentrl_jax.models.io.hf_config_out import describe
from agentrl_jax.models.io.names import check_shapes, file_shapes, leaves
from agentrl_jax.models.io.stacked import Placement, load_leaves, numpy_dtype
from agentrl_jax.models.shape import DecoderConfig, Llama3Scaling

ARCHITECTURES = ("llama", "qwen2", "qwen3")

_ROPE_FACTORS = "rope_freqs.weight"
_IGNORED = (
    *("tokenizer.ggml.scores", "tokenizer.ggml.seperator_token_id", "tokenizer.ggml.cls_token_id"),
    *("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id", "tokenizer.ggml.mask_token_id"),
    *("tokenizer.chat_templates", "tokenizer.huggingface.json"),
)
_IGNORED_PREFIXES = ("general.", "quantize.", "tokenizer.chat_template.", "tokenizer.ggml.fim_")
"""Settings about the origin of the model, and tokens for uses that this project does not have."""


def load_gguf(
    path: Path, *, dtype: Any, placement: Placement, weights: bool = True
) -> tuple[PretrainedConfig, dict[str, Any], dict[str, bytes]]:
    """Reads a model from a GGUF file: configuration, parameters, and the files of the tokenizer by name.

    Quantized weights are dequantized, one layer at a time. Without `weights` there are no parameters.
    """
    file = open_gguf(path)
    fields = Fields(file.metadata, file.where)
    architecture = fields.take("general.architecture")
    if architecture not in ARCHITECTURES:
        raise fields.error("general.architecture", f"one of {', '.join(ARCHITECTURES)}")
    fields.only({"general.type": ("model",), "split.count": (0, 1), "split.no": (0,)})
    fields.take("split.tensors.count")
    files = convert_tokenizer(fields)
    config = _config(fields, architecture, file)
    file.reordered = config.decoder if architecture == "llama" else None
    fields.finish(_IGNORED, _IGNORED_PREFIXES)
    wanted = leaves(config.decoder, "gguf")
    check_shapes(file_shapes(wanted), file.shapes, file.where, {_ROPE_FACTORS})
    params = load_leaves(file, wanted, numpy_dtype(dtype), placement, config.decoder) if weights else {}
    return config, params, files


def _config(fields: Fields, architecture: str, file: GgufFile) -> PretrainedConfig:
    def key(name: str) -> str:
        return f"{architecture}.{name}"

    def integer(name: str, kind: str, default: int | None = None) -> int:
        return fields.integer(key(name), MAX_SIZES[kind], default=default)

    only: dict[str, tuple[Any, ...]] = {
        "rope.scaling.type": ("none",),
        "rope.scaling.factor": (1, 0),
        "rope.scale_linear": (1,),
        "attention.causal": (True,),
        **dict.fromkeys(("attention.sliding_window", "expert_count", "expert_used_count", "pooling_type"), (0,)),
    }
    fields.only({key(name): values for name, values in only.items()})
    heads, embed_dim = integer("attention.head_count", "heads"), integer("embedding_length", "embed_dim")
    head_dim = integer("attention.key_length", "heads", max(1, embed_dim // heads))
    for other in ("attention.value_length", "rope.dimension_count"):
        if integer(other, "heads", head_dim) != head_dim:
            raise fields.error(key(other), f"{head_dim}, the size of the keys")
    embedding = file.tensors.get("token_embd.weight")
    positions = integer("context_length", "positions")
    with naming(file.where):
        decoder = DecoderConfig(
            vocab_size=integer("vocab_size", "vocab", int(embedding.shape[-1]) if embedding is not None else 1),
            num_layers=integer("block_count", "layers"),
            embed_dim=embed_dim,
            num_heads=heads,
            num_kv_heads=integer("attention.head_count_kv", "heads", heads),
            mlp_width=integer("feed_forward_length", "mlp"),
            head_dim=head_dim,
            rope_theta=_short(fields.number(key("rope.freq_base"), default=10_000.0)),
            norm_eps=_short(fields.number(key("attention.layer_norm_rms_epsilon"))),
            tied_embeddings="output.weight" not in file.tensors,
            qkv_bias="blk.0.attn_q.bias" in file.tensors,
            output_bias="blk.0.attn_output.bias" in file.tensors,
            mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
            qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        )
        decoder = dataclasses.replace(decoder, rope_scaling=_rope_scaling(decoder, file))
        tokens = {
            f"{name}_token_id": fields.take(f"tokenizer.ggml.{kind}_token_id")
            for name, kind in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
        }
        return describe(decoder, max_positions=positions, **tokens)


def _short(value: float) -> float:
    """The shortest decimal that rounds to the same f32: 1e-05, which the file stores as 9.99999974e-06."""
    return float(str(np.float32(value)))


def _rope_scaling(decoder: DecoderConfig, file: GgufFile) -> Llama3Scaling | None:
    """Scaling of the rotary frequencies, derived from their divisors, which are all that the file stores.

    The other numbers of Llama 3.1's rule are the same in all published models.
    """
    if _ROPE_FACTORS not in file.tensors:
        return None
    shape, half = file.shapes[_ROPE_FACTORS], decoder.head_dim // 2
    if shape != (half,):
        raise WeightsError.at(file.where, f"{_ROPE_FACTORS} has shape {list(shape)}; expected [{half}]")
    divisors = file.read(_ROPE_FACTORS, (slice(None),))
    scaling = Llama3Scaling(
        factor=_short(float(divisors.max())), low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192
    )
    stretched = layers.rotary_frequencies(dataclasses.replace(decoder, rope_scaling=scaling))
    if not np.allclose(stretched * jnp.asarray(divisors), layers.rotary_frequencies(decoder), rtol=1e-4, atol=0.0):
        raise WeightsError.at(
            file.where,
            f"{_ROPE_FACTORS} contains divisors that are not those of Llama 3.1 for any factor; "
            "use the safetensors files of this model",
        )
    return scaling
