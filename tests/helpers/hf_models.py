"""Tiny models in Hugging Face's layout, written by hand: names, [Out, In] matrices, and what they compute."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SIZES = {
    "vocab_size": 11, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
FAMILIES = {
    "llama": {"model_type": "llama"},
    "llama biased": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "rms_norm_eps": 0.01},
    "llama 3": {
        "model_type": "llama", "rope_theta": 100.0, "rope_scaling": LLAMA3, "tie_word_embeddings": True, "head_dim": 8,
    },
    "qwen2": {"model_type": "qwen2", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "qwen2 window": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "qwen3": {"model_type": "qwen3", "head_dim": 6, "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "sliding_window": 2, "head_dim": 4},
}  # fmt: skip
"""Settings of one model of each kind, in the forms of transformers 4 and 5."""

_MATRICES = {
    "query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj", "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
_NORMS = {
    "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm",
    "query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm",
}  # fmt: skip
LAYER_NAMES = {name: f"{stem}.weight" for name, stem in (_MATRICES | _NORMS).items()}
LAYER_NAMES |= {f"{name}_bias": f"{stem}.bias" for name, stem in _MATRICES.items()}
"""Keys of a layer, written out independently so that a wrong name in the package is noticed."""


def config_of(family: str, **changes) -> dict:
    return {**SIZES, **FAMILIES[family], **changes}


def tensors_of(config: dict, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    embed_dim, mlp, kind = config["hidden_size"], config["intermediate_size"], config["model_type"]
    size = config.get("head_dim") or embed_dim // config["num_attention_heads"]
    heads, kv_heads = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    outputs = {"q": heads, "k": kv_heads, "v": kv_heads}

    def normal(*shape):
        return (0.3 * draw.standard_normal(shape)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": normal(config["vocab_size"], embed_dim)}
    for i in range(config["num_hidden_layers"]):
        layer = {f"{name}_layernorm.weight": 1 + normal(embed_dim) for name in ("input", "post_attention")}
        for name, out in outputs.items():
            layer[f"self_attn.{name}_proj.weight"] = normal(out, embed_dim)
            if kind == "qwen2" or config.get("attention_bias"):
                layer[f"self_attn.{name}_proj.bias"] = normal(out)
            if kind == "qwen3" and name != "v":
                layer[f"self_attn.{name}_norm.weight"] = 1 + normal(size)
        layer["self_attn.o_proj.weight"] = normal(embed_dim, heads)
        if config.get("attention_bias"):
            layer["self_attn.o_proj.bias"] = normal(embed_dim)
        for name, shape in (("gate", (mlp, embed_dim)), ("up", (mlp, embed_dim)), ("down", (embed_dim, mlp))):
            layer[f"mlp.{name}_proj.weight"] = normal(*shape)
            if config.get("mlp_bias"):
                layer[f"mlp.{name}_proj.bias"] = normal(shape[0])
        tensors |= {f"model.layers.{i}.{name}": value for name, value in layer.items()}
    tensors["model.norm.weight"] = 1 + normal(embed_dim)
    if not config.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = normal(config["vocab_size"], embed_dim)
    return tensors


def write_folder(folder: Path, config: dict, tensors: dict[str, np.ndarray], shards: int = 1) -> Path:
    """Writes a model's folder, with its tensors split over `shards` files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    files = {key: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, key in enumerate(tensors)}
    for name in set(files.values()):
        save_file({key: tensors[key] for key in tensors if files[key] == name}, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def slow_logits(config: dict, tensors: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Logits f64[S, V] of one row, from tensors in the layout of the file."""
    t = {key: value.astype(np.float64) for key, value in tensors.items()}
    count, kind = len(tokens), config["model_type"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    frequencies = theta ** (-np.arange(0, size, 2) / size)
    if rope.get("rope_type") == "llama3":
        turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = np.where(turns > high, 1.0, np.where(turns < low, 0.0, (turns - low) / (high - low)))
        frequencies = kept * frequencies + (1 - kept) * frequencies / rope["factor"]
    angles = np.arange(count)[:, None] * frequencies

    def norm(x, scale):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + config.get("rms_norm_eps", 1e-6)) * scale

    def product(name, x):
        return x @ t[f"{name}.weight"].T + t.get(f"{name}.bias", 0.0)

    def rotate(x):
        first, second = np.split(x, 2, axis=-1)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    x = t["model.embed_tokens.weight"][tokens]
    position = np.arange(count)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        h = norm(x, t[f"{at}.input_layernorm.weight"])
        q, k, v = (product(f"{at}.self_attn.{n}_proj", h).reshape(count, -1, size) for n in "qkv")
        if kind == "qwen3":
            q, k = (norm(y, t[f"{at}.self_attn.{n}_norm.weight"]) for n, y in (("q", q), ("k", k)))
        q, k = rotate(q), rotate(k)
        window = config.get("sliding_window") or count
        windowed = kind == "mistral" or (config.get("use_sliding_window") and i >= config["max_window_layers"])
        seen = position[None] <= position[:, None]
        seen &= position[None] > position[:, None] - (window if windowed else count)
        mixed = []
        for head in range(heads):
            shared = head // (heads // kv_heads)
            scores = np.where(seen, q[:, head] @ k[:, shared].T / np.sqrt(size), -np.inf)
            odds = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed.append(odds / odds.sum(axis=-1, keepdims=True) @ v[:, shared])
        x = x + product(f"{at}.self_attn.o_proj", np.concatenate(mixed, axis=-1))
        h = norm(x, t[f"{at}.post_attention_layernorm.weight"])
        gate = product(f"{at}.mlp.gate_proj", h)
        x = x + product(f"{at}.mlp.down_proj", gate / (1 + np.exp(-gate)) * product(f"{at}.mlp.up_proj", h))
    head = t.get("lm_head.weight", t["model.embed_tokens.weight"])
    return norm(x, t["model.norm.weight"]) @ head.T
