"""Tiny GGUF files, made from Hugging Face's tensors with the package `gguf`, as by llama.cpp's converter."""

from pathlib import Path

import gguf
import numpy as np


def permute(weights: np.ndarray, heads: int) -> np.ndarray:
    """The converter's code for llama's queries and keys."""
    shape = weights.shape
    return weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def settings_of(config: dict) -> dict:
    kind = config["model_type"]
    rope = config.get("rope_parameters") or {}
    settings = {
        "general.architecture": kind,
        "general.type": "model",
        "general.name": "tiny",
        f"{kind}.block_count": config["num_hidden_layers"],
        f"{kind}.context_length": config["max_position_embeddings"],
        f"{kind}.embedding_length": config["hidden_size"],
        f"{kind}.feed_forward_length": config["intermediate_size"],
        f"{kind}.attention.head_count": config["num_attention_heads"],
        f"{kind}.attention.head_count_kv": config["num_key_value_heads"],
        f"{kind}.attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", 1e-6),
        f"{kind}.rope.freq_base": rope.get("rope_theta", config.get("rope_theta", 10_000.0)),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*"abcdefghij", "bc"],
        "tokenizer.ggml.token_type": [3] + [1] * 10,
        "tokenizer.ggml.merges": ["b c"],
        "tokenizer.ggml.eos_token_id": 0,
    }
    if "head_dim" in config:
        settings |= {f"{kind}.attention.{name}_length": config["head_dim"] for name in ("key", "value")}
    return settings


def write_gguf(path: Path, config: dict, tensors: dict, *, settings=None, raw=None, divisors=None) -> Path:
    """Writes a file; `settings` replace metadata, `raw` gives blocks and their kind for some tensors."""
    metadata = settings_of(config) | (settings or {})
    writer = gguf.GGUFWriter(path, metadata.pop("general.architecture"))
    for key, value in metadata.items():
        kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING", list: "ARRAY"}
        writer.add_key_value(key, value, gguf.GGUFValueType[kinds[type(value)]])
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config["model_type"].upper()], config["num_hidden_layers"])
    permuted = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    for key, value in tensors.items():
        value, kind = (raw or {}).get(key, (value, None))
        matrix = key.split(".")[-2]
        if kind is None and config["model_type"] == "llama" and matrix in permuted:
            value = permute(value, config[permuted[matrix]])
        writer.add_tensor(names.get_name(key, (".weight", ".bias")), value, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
