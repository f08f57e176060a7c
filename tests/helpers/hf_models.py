"""Tiny models in Hugging Face's layout, and adapters in PEFT's, written by hand: names and [Out, In] matrices."""

import json
import sys
from pathlib import Path

import numpy as np
from paths import GOLDEN
from safetensors.numpy import save_file

sys.path.insert(0, str(GOLDEN / "models" / "parity"))
from families import tensor_shapes

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


def tensors_of(config: dict) -> dict[str, np.ndarray]:
    draw, shapes = np.random.default_rng(0), tensor_shapes({"tie_word_embeddings": False} | config)
    made = {name: 0.3 * draw.standard_normal(shape) + ("norm" in name) for name, shape in sorted(shapes.items())}
    return {name: value.astype(np.float32) for name, value in made.items()}


def write_folder(folder: Path, config: dict, tensors: dict[str, np.ndarray], shards: int = 1) -> Path:
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


PEFT_SETTINGS = {
    "alpha_pattern": {}, "auto_mapping": None, "base_model_name_or_path": "somewhere", "bias": "none",
    "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True, "layers_to_transform": None,
    "lora_alpha": 6, "lora_dropout": 0.05, "modules_to_save": None, "new_config": None, "peft_type": "LORA", "r": 3,
    "rank_pattern": {}, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM", "use_dora": False,
    "use_rslora": False,
}  # fmt: skip
PEFT_SHAPES = {"self_attn.q_proj": (8, 8), "mlp.down_proj": (12, 8)}


def adapter_tensors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    tensors = {}
    for i in range(2):
        for name, (inputs, outputs) in PEFT_SHAPES.items():
            at = f"base_model.model.model.layers.{i}.{name}"
            tensors[f"{at}.lora_A.weight"] = draw.standard_normal((3, inputs)).astype(np.float32)
            tensors[f"{at}.lora_B.weight"] = draw.standard_normal((outputs, 3)).astype(np.float32)
    return tensors


def write_adapter(folder: Path, tensors: dict[str, np.ndarray], **changes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(PEFT_SETTINGS | changes))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
