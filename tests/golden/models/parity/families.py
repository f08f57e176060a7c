"""Small random checkpoints of every model family, in Hugging Face's layout, made without torch.

A family is defined by its `config.json`. The weights are determined by the family's name and the key of each tensor, so
checkpoints are generated when needed and not stored.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

BATCH, LENGTH = 2, 24

_SMALL = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "llama2": _SMALL | {"model_type": "llama", "num_key_value_heads": 4, "rms_norm_eps": 1e-5},
    "llama3.1": _SMALL | {"model_type": "llama", "rope_theta": 500000.0, "rope_scaling": _LLAMA3},
    "llama-biases": _SMALL | {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "smollm2": _SMALL | {"model_type": "llama", "tie_word_embeddings": True, "rope_theta": 100000.0},
    "qwen2.5": _SMALL | {"model_type": "qwen2", "tie_word_embeddings": True, "rope_theta": 1000000.0},
    "qwen2-windows": _SMALL
    | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    "qwen3": _SMALL | {"model_type": "qwen3", "head_dim": 12, "rope_theta": 1000000.0, "tie_word_embeddings": True},
    "mistral": _SMALL | {"model_type": "mistral", "sliding_window": 6, "num_key_value_heads": 1},
}


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of a family's tensors by Hugging Face's keys; matrices are [Out, In]."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    size = config.get("head_dim", width // config["num_attention_heads"])
    query, key = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    kind = config["model_type"]
    attention = {"q_proj": (query, width), "k_proj": (key, width), "v_proj": (key, width), "o_proj": (width, query)}
    mlp = {"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)}
    matrices = {f"self_attn.{name}": shape for name, shape in attention.items()}
    matrices |= {f"mlp.{name}": shape for name, shape in mlp.items()}
    biased = {f"self_attn.{name}_proj" for name in "qkv"} if kind == "qwen2" else set()
    if config.get("attention_bias"):
        biased |= {name for name in matrices if name.startswith("self_attn")}
    if config.get("mlp_bias"):
        biased |= {name for name in matrices if name.startswith("mlp")}
    layer = {f"{name}.weight": shape for name, shape in matrices.items()}
    layer |= {f"{name}.bias": matrices[name][:1] for name in sorted(biased)}
    layer |= {"input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,)}
    if kind == "qwen3":
        layer |= {"self_attn.q_norm.weight": (size,), "self_attn.k_norm.weight": (size,)}
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    return shapes


def tensors(family: str) -> dict[str, np.ndarray]:
    """The family's weights, f32, large enough that every one of them affects the logits."""
    found = {}
    for name, shape in tensor_shapes(FAMILIES[family]).items():
        draw = np.random.Generator(np.random.PCG64(zlib.crc32(f"{family}/{name}".encode())))
        noise = draw.standard_normal(shape).astype(np.float32)
        if len(shape) == 2:
            found[name] = noise * np.float32(1.5 * shape[1] ** -0.5)
        else:
            found[name] = (np.float32(1.0) if "norm" in name else np.float32(0.0)) + np.float32(0.3) * noise
    return found


def tokens(family: str) -> np.ndarray:
    """i32[BATCH, LENGTH] of token ids."""
    draw = np.random.Generator(np.random.PCG64(zlib.crc32(family.encode())))
    return draw.integers(0, FAMILIES[family]["vocab_size"], (BATCH, LENGTH)).astype(np.int32)


def write_folder(family: str, folder: Path) -> Path:
    """Writes the checkpoint as one safetensors file with its config."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(FAMILIES[family]))
    save_file(tensors(family), folder / "model.safetensors", metadata={"format": "pt"})
    return folder
