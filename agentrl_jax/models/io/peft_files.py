"""LoRA adapters in the format of the library PEFT: `adapter_config.json` and `adapter_model.safetensors`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.models.io import safetensors_files
from agentrl_jax.models.io.config_fields import Fields
from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.models.io.local_files import path_inside, read_json
from agentrl_jax.models.io.names import HF_LAYER, PROJECTIONS, Leaf, check_shapes, file_shapes
from agentrl_jax.models.io.stacked import Placement, load_leaves
from agentrl_jax.models.lora import TARGETS, Adapter, LoraConfig
from agentrl_jax.models.shape import DecoderConfig

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"

_MODULES = {PROJECTIONS[name][0].split(".")[1]: name for name in TARGETS}
"""Maps PEFT's names to ours, such as `q_proj` to `query`."""

_ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("alpha_pattern", "loftq_config", "rank_pattern"), ({},)),
    **dict.fromkeys(("ensure_weight_tying", "fan_in_fan_out", "lora_bias"), (False,)),
    **dict.fromkeys(("exclude_modules", "layers_pattern", "modules_to_save", "target_parameters"), ([],)),
    **dict.fromkeys(("use_bdlora", "use_dora", "use_qalora"), (False,)),
    "bias": ("none",),
    # The other initializations (PiSSA, OLoRA, LoftQ, CorDA) change the base weights.
    "init_lora_weights": (True, False, "gaussian", "orthogonal"),
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM",),
}
_IGNORED = (
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "megatron_core"),
    *("peft_version", "qalora_group_size", "revision", "runtime_config"),
)
"""Settings about the origin and training of an adapter; `lora_dropout` has an effect only in PEFT's training."""


def load_adapter(folder: Path, config: DecoderConfig, *, placement: Placement = None) -> tuple[Adapter, LoraConfig]:
    """Reads an adapter, f32, for a decoder of the shape `config`. For `placement`, paths have the form `query/a`.

    The scale of rank-stabilized LoRA, alpha / sqrt(r), is folded into `alpha` of the returned `LoraConfig`.
    """
    folder = Path(folder)
    lora = _parse(Fields(read_json(path_inside(folder, CONFIG)), str(folder / CONFIG)))
    if not path_inside(folder, TENSORS).is_file() and (folder / "adapter_model.bin").exists():
        raise WeightsError.at(folder, "adapter_model.bin is a pickle, which is never read: save it as safetensors")
    wanted = _leaves(config, lora)
    with safetensors_files.open_files(folder, [TENSORS]) as tensors:
        check_shapes(file_shapes(wanted), tensors.shapes, tensors.where)
        return load_leaves(tensors, wanted, np.dtype(np.float32), placement, config), lora


def save_adapter(
    folder: Path,
    adapter: Adapter,
    lora: LoraConfig,
    config: DecoderConfig,
    *,
    base_model: str | None = None,
    revision: str | None = None,
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Writes an adapter, f32, of a decoder of the shape `config`, in PEFT's format.

    The folder must not exist, or be empty; it is written completely or not at all. `base_model` is the folder or name
    of the decoder, with its `revision` on the Hugging Face Hub. `files` are added by name, such as the tokenizer's.
    """
    folder = Path(folder)
    wanted = _leaves(config, lora)
    arrays = safetensors_files.checked_arrays(adapter, wanted, f"{folder}: the adapter")
    tensors = {
        key: safetensors_files.file_tensor(leaf, arrays[path], i, np.dtype(np.float32))
        for path, leaf in wanted.items()
        for i, key in enumerate(leaf.keys)
    }
    settings = {
        "base_model_name_or_path": base_model,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": lora.rank,
        "revision": revision,
        "target_modules": sorted(module for module, name in _MODULES.items() if name in lora.targets),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
    with safetensors_files.atomic_folder(folder, files or {}, {CONFIG: settings}) as temporary:
        safetensors_files.write_tensors(temporary / TENSORS, tensors)


def _parse(fields: Fields) -> LoraConfig:
    if fields.raw.get("peft_type") is None:
        raise fields.error("peft_type", "LORA")
    fields.only(_ONLY)
    rank, alpha = fields.integer("r", 2**16), fields.number("lora_alpha")
    if fields.flag("use_rslora"):
        alpha *= math.sqrt(rank)
    named = list(_MODULES) if fields.take("target_modules") == "all-linear" else fields.take("target_modules")
    if not isinstance(named, list) or not named or not all(isinstance(m, str) and m in _MODULES for m in named):
        raise fields.error("target_modules", f"all-linear, or some of {', '.join(_MODULES)}")
    fields.finish(_IGNORED)
    return LoraConfig(rank=rank, alpha=alpha, targets=tuple(name for m, name in _MODULES.items() if m in named))


def _leaves(config: DecoderConfig, lora: LoraConfig) -> dict[str, Leaf]:
    leaves = {}
    for name in lora.targets:
        inputs, outputs = config.layer_shapes()[name]
        prefix = f"base_model.model.{HF_LAYER}{PROJECTIONS[name][0]}"
        for part, shape in (("a", (inputs, lora.rank)), ("b", (lora.rank, outputs))):
            keys = tuple(f"{prefix}.lora_{part.upper()}.weight".format(i) for i in range(config.num_layers))
            leaves[f"{name}/{part}"] = Leaf((config.num_layers, *shape), keys, True, True)
    return leaves
