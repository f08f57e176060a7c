"""Tiny adapters in PEFT's format, written by hand."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SETTINGS = {
    "alpha_pattern": {}, "auto_mapping": None, "base_model_name_or_path": "somewhere", "bias": "none",
    "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True, "layers_to_transform": None,
    "lora_alpha": 6, "lora_dropout": 0.05, "modules_to_save": None, "new_config": None, "peft_type": "LORA", "r": 3,
    "rank_pattern": {}, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM", "use_dora": False,
    "use_rslora": False,
}  # fmt: skip
SHAPES = {"self_attn.q_proj": (8, 8), "mlp.down_proj": (12, 8)}


def adapter_tensors() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    tensors = {}
    for i in range(2):
        for name, (inputs, outputs) in SHAPES.items():
            at = f"base_model.model.model.layers.{i}.{name}"
            tensors[f"{at}.lora_A.weight"] = draw.standard_normal((3, inputs)).astype(np.float32)
            tensors[f"{at}.lora_B.weight"] = draw.standard_normal((outputs, 3)).astype(np.float32)
    return tensors


def write(folder: Path, tensors: dict[str, np.ndarray], **changes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(SETTINGS | changes))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
