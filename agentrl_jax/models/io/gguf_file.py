"""Loads models from GGUF files, the format of llama.cpp, which hold weights, shape and tokenizer."""

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from agentrl_jax.models import layers
from agentrl_jax.models.io.config_fields import Fields
from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.models.io.gguf_format import GgufFile, open_gguf
from agentrl_jax.models.io.gguf_tokenizer import tokenizer_files
from agentrl_jax.models.io.hf_config import MOST, PretrainedConfig
from agentrl_jax.models.io.hf_config_out import describe
from agentrl_jax.models.io.names import check_shapes, leaves
from agentrl_jax.models.io.stacked import Placement, load_leaves, numpy_dtype
from agentrl_jax.models.shape import DecoderConfig, Llama3Scaling

ARCHITECTURES = ("llama", "qwen2", "qwen3")

_ROPE_FACTORS = "rope_freqs.weight"
_HARMLESS = (
    *("tokenizer.ggml.scores", "tokenizer.ggml.seperator_token_id", "tokenizer.ggml.cls_token_id"),
    *("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id", "tokenizer.ggml.mask_token_id"),
    *("tokenizer.chat_templates", "tokenizer.huggingface.json"),
)
_HARMLESS_PREFIXES = ("general.", "quantize.", "tokenizer.chat_template.", "tokenizer.ggml.fim_")
"""Settings about the origin of the model, and tokens for uses that this project does not have."""


def load_gguf(
    path: Path, *, dtype: Any, placement: Placement
) -> tuple[PretrainedConfig, dict[str, Any], dict[str, bytes]]:
    """Reads a model from a GGUF file; quantized weights are dequantized, one layer at a time.

    Args:
        path: the file.
        dtype: dtype of the parameters: float32, bfloat16 or float16.
        placement: sharding of the parameters, see `stacked.Placement`.

    Returns:
        Configuration, parameters in the form of `decoder.init_params`, and the files of the tokenizer by name.

    Raises:
        WeightsError: the file is damaged or not supported, or the package `gguf` is missing.
    """
    file = open_gguf(path)
    fields = Fields(file.metadata, str(path))
    architecture = fields.take("general.architecture")
    if architecture not in ARCHITECTURES:
        raise fields.refuse("general.architecture", f"one of {', '.join(ARCHITECTURES)}")
    fields.only({"general.type": ("model",), "split.count": (0, 1), "split.no": (0,)})
    fields.take("split.tensors.count")
    files = tokenizer_files(fields)
    config = _config(fields, architecture, file)
    tensors = _GgufTensors(file, config.decoder if architecture == "llama" else None)
    fields.finish(_HARMLESS, _HARMLESS_PREFIXES)
    wanted = leaves(config.decoder, "gguf")
    expected = {key: leaf.file_shape for leaf in wanted.values() for key in leaf.keys}
    check_shapes(expected, tensors.shapes, str(path), {_ROPE_FACTORS})
    return config, load_leaves(tensors, wanted, numpy_dtype(dtype), placement, config.decoder), files


def _config(fields: Fields, architecture: str, file: GgufFile) -> PretrainedConfig:
    def key(name: str) -> str:
        return f"{architecture}.{name}"

    def whole(name: str, most: int, default: int | None = None) -> int:
        absent = default is not None and fields.take(key(name)) is None
        return default if absent and default is not None else fields.whole(key(name), most)

    fields.only(
        {
            key("rope.scaling.type"): ("none",),
            key("rope.scaling.factor"): (1, 0),
            key("rope.scale_linear"): (1,),
            key("attention.sliding_window"): (0,),
            key("attention.causal"): (True,),
            key("expert_count"): (0,),
            key("expert_used_count"): (0,),
            key("pooling_type"): (0,),
        }
    )
    heads, embed_dim = whole("attention.head_count", MOST["heads"]), whole("embedding_length", MOST["embed_dim"])
    head_dim = whole("attention.key_length", MOST["heads"], max(1, embed_dim // heads))
    for other in ("attention.value_length", "rope.dimension_count"):
        if whole(other, MOST["heads"], head_dim) != head_dim:
            raise fields.refuse(key(other), f"{head_dim}, as the keys have")
    embedding = file.tensors.get("token_embd.weight")
    vocab_size = whole("vocab_size", MOST["vocab"], int(embedding.shape[-1]) if embedding is not None else 1)
    theta = 10_000.0 if fields.take(key("rope.freq_base")) is None else fields.number(key("rope.freq_base"))
    positions = whole("context_length", MOST["positions"])
    try:
        decoder = DecoderConfig(
            vocab_size=vocab_size,
            num_layers=whole("block_count", MOST["layers"]),
            embed_dim=embed_dim,
            num_heads=heads,
            num_kv_heads=whole("attention.head_count_kv", MOST["heads"], heads),
            mlp_width=whole("feed_forward_length", MOST["mlp"]),
            head_dim=head_dim,
            rope_theta=_short(theta),
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
    except WeightsError:
        raise
    except ValueError as error:
        raise WeightsError(f"{file.path}: {error}") from error


def _short(value: float) -> float:
    """The shortest decimal that rounds to the same f32: 1e-05, which the file stores as 9.99999974e-06."""
    return float(str(np.float32(value)))


def _rope_scaling(decoder: DecoderConfig, file: GgufFile) -> Llama3Scaling | None:
    """Scaling of the rotary frequencies, derived from the divisors f32[Dh/2] in the file.

    Of Llama 3.1's rule the file stores only the divisors. The other numbers are the same in all published models.
    """
    if _ROPE_FACTORS not in file.tensors:
        return None
    tensors = _GgufTensors(file, None)
    if tensors.shapes[_ROPE_FACTORS] != (decoder.head_dim // 2,):
        raise WeightsError(f"{file.path}: {_ROPE_FACTORS} is {list(tensors.shapes[_ROPE_FACTORS])}; expected Dh / 2")
    divisors = tensors.read(_ROPE_FACTORS, (slice(None),))
    scaling = Llama3Scaling(
        factor=_short(float(divisors.max())), low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192
    )
    stretched = layers.rotary_frequencies(dataclasses.replace(decoder, rope_scaling=scaling))
    if not np.allclose(stretched * jnp.asarray(divisors), layers.rotary_frequencies(decoder), rtol=1e-4, atol=0.0):
        raise WeightsError(
            f"{file.path}: {_ROPE_FACTORS} holds divisors that are not those of Llama 3.1 for any factor; "
            "use the safetensors files of this model"
        )
    return scaling


class _GgufTensors:
    """Tensors of a GGUF file in the layout of Hugging Face; see `stacked.Tensors`."""

    def __init__(self, file: GgufFile, permuted: DecoderConfig | None):
        """Tensors of `file`; if `permuted` is given, its file has the rows of query and key in another order."""
        self._tensors, self._permuted = file.tensors, permuted
        self.where = str(file.path)
        self.shapes = {name: tuple(tensor.shape.tolist()[::-1]) for name, tensor in file.tensors.items()}

    def read(self, key: str, index: tuple[slice, ...]) -> np.ndarray:
        """The slice `index` of tensor `key`, f32."""
        import gguf

        tensor = self._tensors[key]
        rows = self._order(key, self.shapes[key][0])[index[0]]
        with np.errstate(all="ignore"):  # a damaged file may hold any number
            if len(self.shapes[key]) == 1:  # only a whole row can be dequantized
                return gguf.dequantize(np.ascontiguousarray(tensor.data), tensor.tensor_type)[rows]
            return gguf.dequantize(np.ascontiguousarray(tensor.data[rows]), tensor.tensor_type)[:, index[1]]

    def _order(self, key: str, count: int) -> np.ndarray:
        """Row in the file for each of our rows: llama.cpp pairs dimensions 2i and 2i + 1, we pair i and i + Dh/2."""
        if self._permuted is None or key.split(".")[-2] not in ("attn_q", "attn_k"):
            return np.arange(count)
        heads = self._permuted.num_heads if key.split(".")[-2] == "attn_q" else self._permuted.num_kv_heads
        return np.arange(count).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
