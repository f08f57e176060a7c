"""Converts Hugging Face's `config.json` to a `DecoderConfig`.

Every key is used, known to change nothing, or refused by name: an unsupported setting is never ignored. Both the form
of transformers 4 (`rope_theta`, `rope_scaling`) and that of transformers 5 (`rope_parameters`) are read.
`hf_config_out` does the reverse.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl_jax.models.io.config_fields import Fields, shown
from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.models.io.local_files import read_json
from agentrl_jax.models.shape import DecoderConfig, Llama3Scaling

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
}
"""Supported model types, and the class name of each."""

_ONLY: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "attention_dropout": (0,),
    "chunk_size_feed_forward": (0,),
    "hidden_act": ("silu", "swish"),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "partial_rotary_factor": (1,),
    "per_layer_config": ({},),
    "pretraining_tp": (1,),
    "pruned_heads": ({},),
    "rope_interleaved": (False,),
    "tie_encoder_decoder": (False,),
    "use_mrope": (False,),
}
"""Keys that may change the model, with the only supported values."""

_ONLY_OF: dict[str, dict[str, tuple[Any, ...]]] = {
    "llama": {"use_sliding_window": (False,)},
    "qwen2": {"attention_bias": (True,), "mlp_bias": (False,)},
    "qwen3": {"mlp_bias": (False,)},
    "mistral": {"attention_bias": (False,), "mlp_bias": (False,), "use_sliding_window": (False,)},
}

_HARMLESS = {
    "origin and storage": "_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path "
    "attn_implementation dtype is_llama_config torch_dtype transformers.js_config transformers_version "
    "unsloth_fixed unsloth_version",
    "tokens, which the tokenizer knows better": "bos_token_id decoder_start_token_id eos_token_id pad_token_id "
    "sep_token_id tokenizer_class",
    "training and the form of results": "cross_attention_hidden_size finetuning_task id2label initializer_range "
    "label2id num_labels output_attentions output_hidden_states prefix return_dict task_specific_params "
    "tf_legacy_loss torchscript use_bfloat16 use_cache",
    "generation, which is set elsewhere": "bad_words_ids begin_suppress_tokens diversity_penalty do_sample "
    "early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id "
    "forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams "
    "num_return_sequences output_scores remove_invalid_values repetition_penalty return_dict_in_generate "
    "suppress_tokens temperature top_k top_p typical_p",
}
HARMLESS = frozenset(" ".join(_HARMLESS.values()).split())
"""Keys that do not affect what the model computes."""

MOST = {"layers": 1024, "heads": 4096, "embed_dim": 2**18, "mlp": 2**21, "vocab": 2**24, "positions": 2**31}
"""Upper bounds of sizes, beyond any known decoder; larger values are mistakes or attacks."""


@dataclasses.dataclass(frozen=True)
class PretrainedConfig:
    """A decoder and its Hugging Face configuration.

    Attributes:
        decoder: its shape. `dtype` is always float32, regardless of the dtype of the file.
        model_type: key of `ARCHITECTURES`.
        max_positions: number of positions that it was trained for.
        raw: the complete content of `config.json`.
    """

    decoder: DecoderConfig
    model_type: str
    max_positions: int
    raw: Mapping[str, Any] = dataclasses.field(repr=False, compare=False)


def read_config(path: Path) -> PretrainedConfig:
    """Reads a `config.json`.

    Raises:
        WeightsError: the file cannot be read, or a setting is not supported.
    """
    return parse_config(read_json(path), str(path))


def parse_config(raw: Mapping[str, Any], where: str = "config.json") -> PretrainedConfig:
    """Parses the content of a `config.json`.

    Args:
        raw: the content.
        where: file name for error messages.

    Raises:
        WeightsError: a setting is not supported, missing, or of the wrong type.
    """
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise WeightsError(
            f"{where}: model_type is {shown(model_type)}; expected one of {', '.join(ARCHITECTURES)}, because no other "
            "kind of model is supported"
        )
    fields = Fields(raw, where, defaults(model_type))
    fields.take("model_type")
    named = fields.take("architectures")
    if named not in (None, [ARCHITECTURES[model_type]]):
        raise fields.refuse("architectures", f"[{ARCHITECTURES[model_type]!r}]")
    fields.only(_ONLY)
    fields.only(_ONLY_OF[model_type])
    layers = fields.whole("num_hidden_layers", MOST["layers"])
    heads = fields.whole("num_attention_heads", MOST["heads"])
    embed_dim = fields.whole("hidden_size", MOST["embed_dim"])
    positions = fields.whole("max_position_embeddings", MOST["positions"])
    theta, scaling = _rope(fields, positions)
    attention_bias = model_type in ("llama", "qwen3") and fields.flag("attention_bias")
    try:
        decoder = DecoderConfig(
            vocab_size=fields.whole("vocab_size", MOST["vocab"]),
            num_layers=layers,
            embed_dim=embed_dim,
            num_heads=heads,
            num_kv_heads=_or(fields, "num_key_value_heads", heads),
            mlp_width=fields.whole("intermediate_size", MOST["mlp"]),
            head_dim=_or(fields, "head_dim", _head_dim(fields, embed_dim, heads)),
            rope_theta=theta,
            rope_scaling=scaling,
            norm_eps=fields.number("rms_norm_eps"),
            tied_embeddings=fields.flag("tie_word_embeddings"),
            qkv_bias=model_type == "qwen2" or attention_bias,
            output_bias=attention_bias,
            mlp_bias=model_type == "llama" and fields.flag("mlp_bias"),
            qk_norm=model_type == "qwen3",
            windows=_windows(fields, model_type, layers),
        )
    except WeightsError:
        raise
    except ValueError as error:
        raise WeightsError(f"{where}: {error}") from error
    fields.finish(HARMLESS)
    return PretrainedConfig(decoder, model_type, positions, dict(raw))


@functools.cache
def defaults(model_type: str) -> Mapping[str, Any]:
    """Default values of transformers for absent keys, by key, for one of `ARCHITECTURES`.

    Raises:
        WeightsError: the package transformers is missing.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would warn that PyTorch is missing
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise WeightsError(
            "pretrained models need the package transformers; pip install 'transformers>=5.17,<6'"
        ) from error
    made = AutoConfig.for_model(model_type)
    found = {field.name: field.default for field in dataclasses.fields(made)}
    return {**found, "rope_theta": made.rope_parameters["rope_theta"]}


def _or(fields: Fields, key: str, default: int) -> int:
    """A number of heads or their size; `default` if the key is null."""
    return default if fields.take(key) is None else fields.whole(key, MOST["heads"])


def _head_dim(fields: Fields, embed_dim: int, heads: int) -> int:
    if embed_dim % heads and fields.take("head_dim") is None:
        raise fields.refuse("hidden_size", f"a multiple of num_attention_heads, {heads}, where head_dim is absent")
    return embed_dim // heads


def _rope(fields: Fields, positions: int) -> tuple[float, Llama3Scaling | None]:
    """Base and scaling of the rotary frequencies."""
    new, old = fields.take("rope_parameters"), fields.take("rope_scaling")
    if new and old:
        raise fields.refuse("rope_scaling", "nothing beside rope_parameters, which says the same")
    for key, value in (("rope_parameters", new), ("rope_scaling", old)):
        if value is not None and not isinstance(value, dict):
            raise fields.refuse(key, "an object with keys, or null")
    inside = Fields(
        new or old or {},
        f"{fields.where}: {'rope_parameters' if new else 'rope_scaling'}",
        {"rope_theta": fields.number("rope_theta"), "original_max_position_embeddings": positions},
    )
    theta = inside.number("rope_theta")
    if theta != fields.number("rope_theta") and "rope_theta" in fields.raw:
        raise fields.refuse("rope_theta", f"{theta}, as the other value of this name says")
    inside.only({"partial_rotary_factor": (1,), "rope_type": _ROPES, "type": _ROPES})  # "type" is an old name
    kinds = {inside.raw.get("rope_type"), inside.raw.get("type")} - {None}
    if len(kinds) > 1:
        raise inside.refuse("type", f"{inside.raw['rope_type']!r}, as rope_type says")
    scaling = None
    if kinds == {"llama3"}:
        try:
            scaling = Llama3Scaling(
                factor=inside.number("factor"),
                low_freq_factor=inside.number("low_freq_factor"),
                high_freq_factor=inside.number("high_freq_factor"),
                original_positions=inside.whole("original_max_position_embeddings", MOST["positions"]),
            )
        except WeightsError:
            raise
        except ValueError as error:
            raise WeightsError(f"{inside.where}: {error}") from error
    inside.finish()
    return theta, scaling


def _windows(fields: Fields, model_type: str, layers: int) -> tuple[int, ...]:
    """Window of each layer, for `DecoderConfig.windows`.

    With a window of w, position q sees k > q - w, both in transformers and here.
    """
    window, first = None, 0
    if model_type == "mistral":
        window = _window(fields)
    elif model_type in ("qwen2", "qwen3"):
        first = fields.whole("max_window_layers", MOST["layers"], least=0)
        fields.take("sliding_window")  # has no effect unless use_sliding_window is true
        window = _window(fields) if fields.flag("use_sliding_window") else None
    usual = ["sliding_attention" if window and i >= first else "full_attention" for i in range(layers)]
    kinds = fields.take("layer_types") or usual
    if not isinstance(kinds, list) or len(kinds) != layers or not all(k in _KINDS for k in kinds):
        raise fields.refuse("layer_types", f"one of {' or '.join(_KINDS)} for each of {layers} layers")
    free = model_type in ("qwen2", "qwen3")  # other models ignore the list, so a list that disagrees is a mistake
    if (kinds != usual and not free) or ("sliding_attention" in kinds and window is None):
        raise fields.refuse("layer_types", f"a list that agrees with the window of {window or 0} positions")
    sizes = tuple(window or 0 if kind == "sliding_attention" else 0 for kind in kinds)
    return sizes if any(sizes) else ()


_ROPES = ("default", "llama3")
_KINDS = ("full_attention", "sliding_attention")


def _window(fields: Fields) -> int | None:
    return None if fields.take("sliding_window") is None else fields.whole("sliding_window", MOST["positions"])
