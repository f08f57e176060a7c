"""LoRA adapters in the format of the library PEFT: `adapter_config.json` and `adapter_model.safetensors`."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.models.io.config_fields import Fields
from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.models.io.local_files import member, read_json
from agentrl_jax.models.io.names import HF_LAYER, PROJECTIONS, Leaf, check_shapes
from agentrl_jax.models.io.safetensors_files import open_files
from agentrl_jax.models.io.safetensors_out import file_tensor, flatten, whole_folder, write_files, write_tensors
from agentrl_jax.models.io.stacked import Placement, load_leaves
from agentrl_jax.models.lora import TARGETS, Adapter, LoraConfig
from agentrl_jax.models.shape import DecoderConfig

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"

_MODULES = {PROJECTIONS[name][0].split(".")[1]: name for name in TARGETS}
"""Maps PEFT's names to ours, such as `q_proj` to `query`."""

_ONLY: dict[str, tuple[Any, ...]] = {
    "alpha_pattern": ({},),
    "bias": ("none",),
    "ensure_weight_tying": (False,),
    "exclude_modules": ([],),
    "fan_in_fan_out": (False,),
    # The other initializations (PiSSA, OLoRA, LoftQ, CorDA) change the base weights.
    "init_lora_weights": (True, False, "gaussian", "orthogonal"),
    "layers_pattern": ([],),
    "loftq_config": ({},),
    "lora_bias": (False,),
    "modules_to_save": ([],),
    "peft_type": ("LORA",),
    "rank_pattern": ({},),
    "target_parameters": ([],),
    "task_type": ("CAUSAL_LM",),
    "use_bdlora": (False,),
    "use_dora": (False,),
    "use_qalora": (False,),
}
_HARMLESS = frozenset(
    (
        *("auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "megatron_core"),
        *("peft_version", "qalora_group_size", "revision", "runtime_config"),
    )
)
"""Settings about the origin and training of an adapter; `lora_dropout` has an effect only in PEFT's training."""


def load_adapter(folder: Path, config: DecoderConfig, *, placement: Placement = None) -> tuple[Adapter, LoraConfig]:
    """Reads an adapter.

    Args:
        folder: contains `adapter_config.json` and `adapter_model.safetensors`.
        config: shape of the decoder that the adapter belongs to.
        placement: sharding of the adapter, see `stacked.Placement`; paths have the form `query/a`.

    Returns:
        The adapter, f32, and its `LoraConfig`. The scale of rank-stabilized LoRA, alpha / sqrt(r), is folded into
        `alpha`.

    Raises:
        WeightsError: a file is damaged, does not fit the decoder, or has settings that are not supported.
    """
    folder = Path(folder)
    lora = _parse(Fields(read_json(member(folder, CONFIG)), str(folder / CONFIG)))
    if not member(folder, TENSORS).is_file() and (folder / "adapter_model.bin").exists():
        raise WeightsError(f"{folder}: adapter_model.bin is a pickle, which is never read: save it as safetensors")
    wanted = _leaves(config, lora)
    with open_files(folder, [TENSORS]) as tensors:
        expected = {key: leaf.file_shape for leaf in wanted.values() for key in leaf.keys}
        check_shapes(expected, tensors.shapes, tensors.where)
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
    """Writes an adapter, f32, in PEFT's format. The folder is written completely or not at all.

    Args:
        folder: must not exist, or be empty.
        adapter: the adapter.
        lora: its rank, scale and targets.
        config: shape of the decoder that it belongs to.
        base_model: folder or name of the decoder, for PEFT.
        revision: revision of the decoder, if `base_model` is a name on the Hugging Face Hub.
        files: content of additional files by name, such as the tokenizer's.

    Raises:
        WeightsError: the adapter does not fit the decoder, or the folder cannot be written.
    """
    folder = Path(folder)
    wanted, given = _leaves(config, lora), flatten(adapter)
    check_shapes(
        {path: leaf.shape for path, leaf in wanted.items()},
        {path: array.shape for path, array in given.items()},
        f"{folder}: the adapter",
    )
    tensors = {
        key: file_tensor(leaf, given[path], i, np.dtype(np.float32))
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
    with whole_folder(folder) as place:
        write_tensors(place / TENSORS, tensors)
        write_files(place, files or {})
        (place / CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _parse(fields: Fields) -> LoraConfig:
    if fields.raw.get("peft_type") is None:
        raise fields.refuse("peft_type", "LORA")
    fields.only(_ONLY)
    rank, alpha = fields.whole("r", 2**16), fields.number("lora_alpha")
    if fields.flag("use_rslora"):
        alpha *= math.sqrt(rank)
    named = fields.take("target_modules")
    if named == "all-linear":
        named = list(_MODULES)
    if not isinstance(named, list) or not named or not all(isinstance(m, str) and m in _MODULES for m in named):
        raise fields.refuse("target_modules", f"all-linear, or some of {', '.join(_MODULES)}")
    fields.finish(_HARMLESS)
    return LoraConfig(rank=rank, alpha=alpha, targets=tuple(name for m, name in _MODULES.items() if m in named))


def _leaves(config: DecoderConfig, lora: LoraConfig) -> dict[str, Leaf]:
    made = {}
    for name in lora.targets:
        inputs, outputs = config.layer_shapes()[name]
        prefix = f"base_model.model.{HF_LAYER}{PROJECTIONS[name][0]}"
        for part, shape in (("a", (inputs, lora.rank)), ("b", (lora.rank, outputs))):
            keys = tuple(f"{prefix}.lora_{part.upper()}.weight".format(i) for i in range(config.num_layers))
            made[f"{name}/{part}"] = Leaf((config.num_layers, *shape), keys, True, True)
    return made
