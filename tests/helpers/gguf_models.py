"""Tiny GGUF files, made from Hugging Face's tensors with the package `gguf`, as by llama.cpp's converter."""

from pathlib import Path

import gguf
import numpy as np

NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(key: str) -> str:
    stem, _, kind = key.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.{kind}"


def permute(weights: np.ndarray, heads: int) -> np.ndarray:
    """The converter's code for llama's queries and keys."""
    shape = weights.shape
    return weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def settings_of(config: dict) -> dict:
    """Metadata as the converter writes it; the vocabulary is ten letters and a pair."""
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
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING"}
            writer.add_key_value(key, value, getattr(gguf.GGUFValueType, kinds[type(value)]))
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    for key, value in tensors.items():
        if raw and key in raw:
            blocks, kind = raw[key]
            writer.add_tensor(gguf_name(key), blocks, raw_dtype=kind)
            continue
        if config["model_type"] == "llama" and "q_proj" in key:
            value = permute(value, config["num_attention_heads"])
        if config["model_type"] == "llama" and "k_proj" in key:
            value = permute(value, config["num_key_value_heads"])
        writer.add_tensor(gguf_name(key), value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
