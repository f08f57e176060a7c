"""The encoder of BERT (Devlin et al., 2019) with mean pooling, as sentence-transformers and E5 have it.

Shapes: `B` texts, `S` tokens of a text, `D` width, `F` width of the feed-forward layer.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, Int
from safetensors import SafetensorError, safe_open

from agentrl_jax.errors import UserError
from agentrl_jax.models.io.local_files import read_json

_EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings")
_SUPPORTED = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Shape of an encoder."""

    layers: int
    width: int
    heads: int
    mlp_width: int
    vocab_size: int
    positions: int
    eps: float


def read_config(folder: Path) -> BertConfig:
    """Reads `config.json`.

    Raises:
        UserError: it is of another kind of model, or a number is missing.
        WeightsError: the file is missing or no JSON.
    """
    file = folder / "config.json"
    data = read_json(file)
    for key, wanted in _SUPPORTED.items():
        if (value := data.get(key, wanted)) != wanted:
            raise UserError.at(file, f"{key} is {value!r}; expected {wanted!r}", value)
    names = {
        "layers": "num_hidden_layers",
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "mlp_width": "intermediate_size",
        "vocab_size": "vocab_size",
        "positions": "max_position_embeddings",
        "eps": "layer_norm_eps",
    }
    for key in names.values():
        if not isinstance(data.get(key), int | float) or data[key] <= 0:
            raise UserError.at(file, f"{key} is {data.get(key)!r}; expected a number above 0", data.get(key))
    return BertConfig(**{name: data[key] for name, key in names.items()})


def tensor_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """The tensors that the encoder reads, by the names of their file. Weights of products are [out, in]."""
    width, mlp = config.width, config.mlp_width

    def dense(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}

    def norm(name: str) -> dict[str, tuple[int, ...]]:
        return {f"{name}.LayerNorm.weight": (width,), f"{name}.LayerNorm.bias": (width,)}

    sizes = zip(_EMBEDDINGS, (config.vocab_size, config.positions, 2))
    shapes: dict[str, tuple[int, ...]] = {f"embeddings.{name}.weight": (size, width) for name, size in sizes}
    shapes |= norm("embeddings")
    for layer in range(config.layers):
        name = f"encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            shapes |= dense(f"{name}.attention.self.{part}", width, width)
        shapes |= dense(f"{name}.attention.output.dense", width, width) | norm(f"{name}.attention.output")
        shapes |= dense(f"{name}.intermediate.dense", width, mlp)
        shapes |= dense(f"{name}.output.dense", mlp, width) | norm(f"{name}.output")
    return shapes


def load_params(folder: Path, config: BertConfig) -> dict[str, Array]:
    """Reads `model.safetensors` as float32.

    Raises:
        UserError: the file is missing or incomplete, or a tensor is missing or has another shape.
    """
    file, params = folder / "model.safetensors", dict[str, Array]()
    try:
        with safe_open(file, framework="numpy") as tensors:
            names = set(tensors.keys())
            prefix = "" if "embeddings.word_embeddings.weight" in names else "bert."
            for name, shape in tensor_shapes(config).items():
                if prefix + name not in names:
                    raise UserError.at(file, f"has no tensor {prefix + name}; expected those of BERT", name)
                array = tensors.get_tensor(prefix + name)
                if array.shape != shape or not np.isfinite(array).all():
                    raise UserError.at(file, f"{name} has shape {array.shape}; expected {shape}, all finite", name)
                params[name] = jnp.array(array, jnp.float32)
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise UserError.at(file, f"cannot be read ({str(error)[:200]}); install or download it again") from error
    return params


def embed(
    params: Mapping[str, Array], config: BertConfig, tokens: Int[Array, "B S"], sizes: Int[Array, " B"]
) -> Float32[Array, "B D"]:
    """Unit vectors of texts: the mean over the first `sizes` tokens of each, all of the first segment."""
    mask = jnp.arange(tokens.shape[1]) < sizes[:, None]
    words, positions, segments = (params[f"embeddings.{name}.weight"] for name in _EMBEDDINGS)
    x = words[tokens] + positions[: tokens.shape[1]] + segments[0]
    x = _norm(params, "embeddings", x, config.eps)
    for layer in range(config.layers):
        name = f"encoder.layer.{layer}"
        x = _norm(params, f"{name}.attention.output", x + _attention(params, config, name, x, mask), config.eps)
        hidden = jax.nn.gelu(_dense(params, f"{name}.intermediate.dense", x), approximate=False)
        x = _norm(params, f"{name}.output", x + _dense(params, f"{name}.output.dense", hidden), config.eps)
    mean = jnp.where(mask[:, :, None], x, 0).sum(axis=1) / jnp.maximum(sizes, 1)[:, None]
    return mean / jnp.maximum(jnp.linalg.norm(mean, axis=1, keepdims=True), 1e-12)


def _attention(params: Mapping[str, Array], config: BertConfig, name: str, x: Array, mask: Array) -> Array:
    def heads(part: str) -> Array:
        return _dense(params, f"{name}.attention.self.{part}", x).reshape(*x.shape[:2], config.heads, -1)

    scores = jnp.einsum("bqhd,bkhd->bhqk", heads("query"), heads("key"), precision=lax.Precision.HIGHEST)
    scores = jnp.where(mask[:, None, None], scores / (config.width // config.heads) ** 0.5, -1e9)
    weights = jax.nn.softmax(scores, axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, heads("value"), precision=lax.Precision.HIGHEST)
    return _dense(params, f"{name}.attention.output.dense", mixed.reshape(x.shape))


def _dense(params: Mapping[str, Array], name: str, x: Array) -> Array:
    return jnp.matmul(x, params[f"{name}.weight"].T, precision=lax.Precision.HIGHEST) + params[f"{name}.bias"]


def _norm(params: Mapping[str, Any], name: str, x: Array, eps: float) -> Array:
    centered = x - x.mean(axis=-1, keepdims=True)
    normed = centered * lax.rsqrt((centered**2).mean(axis=-1, keepdims=True) + eps)
    return normed * params[f"{name}.LayerNorm.weight"] + params[f"{name}.LayerNorm.bias"]
