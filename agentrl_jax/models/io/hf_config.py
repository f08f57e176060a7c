"""Converts Hugging Face's `config.json` to a `DecoderConfig`.

Every key is used, known to change nothing, or refused by name: an unsupported setting is never ignored. Both the form
of transformers 4 (`rope_theta`, `rope_scaling`) and that of transformers 5 (`rope_parameters`) are read.
`hf_config_out` does the reverse.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any

from agentrl_jax.models.io.config_fields import Fields
from agentrl_jax.models.io.errors import WeightsError, naming
from agentrl_jax.models.shape import DecoderConfig, Llama3Scaling

ARCHITECTURES = {name: f"{name.capitalize()}ForCausalLM" for name in ("llama", "qwen2", "qwen3", "mistral")}
"""Supported model types, and the class name of each."""

_ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("add_cross_attention", "is_decoder", "is_encoder_decoder", "tie_encoder_decoder"), (False,)),
    **dict.fromkeys(("rope_interleaved", "use_mrope"), (False,)),
    **dict.fromkeys(("attention_dropout", "chunk_size_feed_forward"), (0,)),
    **dict.fromkeys(("partial_rotary_factor", "pretraining_tp"), (1,)),
    **dict.fromkeys(("per_layer_config", "pruned_heads"), ({},)),
    "hidden_act": ("silu", "swish"),
}
"""Keys that may change the model, with the only supported values."""

_ONLY_OF: dict[str, dict[str, tuple[Any, ...]]] = {
    "llama": {"use_sliding_window": (False,)},
    "qwen2": {"attention_bias": (True,), "mlp_bias": (False,)},
    "qwen3": {"mlp_bias": (False,)},
    "mistral": {"attention_bias": (False,), "mlp_bias": (False,), "use_sliding_window": (False,)},
}

_IGNORED = frozenset(
    " ".join(
        (
            # Origin and storage.
            "_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path attn_implementation dtype "
            "is_llama_config torch_dtype transformers.js_config transformers_version unsloth_fixed unsloth_version",
            # Tokens, which the files of the tokenizer define.
            "bos_token_id decoder_start_token_id eos_token_id pad_token_id sep_token_id tokenizer_class",
            # Training and the form of results.
            "cross_attention_hidden_size finetuning_task id2label initializer_range label2id num_labels "
            "output_attentions output_hidden_states prefix return_dict task_specific_params tf_legacy_loss "
            "torchscript use_bfloat16 use_cache",
        )
    ).split()
)
"""Keys that do not affect what the model computes, besides those of `GENERATION`."""

GENERATION = frozenset(
    " ".join(
        (
            "bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping "
            "encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id "
            "length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences",
            "output_scores remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens "
            "temperature top_k top_p typical_p",
        )
    ).split()
)
"""Keys of generation, which is set elsewhere."""

MAX_SIZES = {"layers": 1024, "heads": 4096, "embed_dim": 2**18, "mlp": 2**21, "vocab": 2**24, "positions": 2**31}
"""Upper bounds of sizes, beyond any known decoder; larger values are mistakes or attacks."""

_ROPE_TYPES = ("default", "llama3")
_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclasses.dataclass(frozen=True)
class PretrainedConfig:
    """A decoder, whose `dtype` is always float32, and its Hugging Face configuration."""

    decoder: DecoderConfig
    model_type: str
    """Key of `ARCHITECTURES`."""
    max_positions: int
    """Number of positions that it was trained for."""
    raw: Mapping[str, Any] = dataclasses.field(repr=False, compare=False)
    """The content of `config.json`."""


def parse_config(raw: Mapping[str, Any], where: str = "config.json") -> PretrainedConfig:
    """Parses the content of a `config.json`; `where` is its name in error messages."""
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise Fields(raw, where).error("model_type", f"one of {', '.join(ARCHITECTURES)}")
    fields = Fields(raw, where, defaults(model_type))
    fields.take("model_type")
    named = fields.take("architectures")
    if named not in (None, [ARCHITECTURES[model_type]]):
        raise fields.error("architectures", f"[{ARCHITECTURES[model_type]!r}]")
    fields.only(_ONLY)
    fields.only(_ONLY_OF[model_type])
    layers = fields.integer("num_hidden_layers", MAX_SIZES["layers"])
    heads = fields.integer("num_attention_heads", MAX_SIZES["heads"])
    embed_dim = fields.integer("hidden_size", MAX_SIZES["embed_dim"])
    if embed_dim % heads and fields.take("head_dim") is None:
        raise fields.error("hidden_size", f"a multiple of num_attention_heads, {heads}, where head_dim is absent")
    positions = fields.integer("max_position_embeddings", MAX_SIZES["positions"])
    theta, scaling = _rope(fields, positions)
    attention_bias = model_type in ("llama", "qwen3") and fields.flag("attention_bias")
    with naming(where):
        decoder = DecoderConfig(
            vocab_size=fields.integer("vocab_size", MAX_SIZES["vocab"]),
            num_layers=layers,
            embed_dim=embed_dim,
            num_heads=heads,
            num_kv_heads=fields.integer("num_key_value_heads", MAX_SIZES["heads"], default=heads),
            mlp_width=fields.integer("intermediate_size", MAX_SIZES["mlp"]),
            head_dim=fields.integer("head_dim", MAX_SIZES["heads"], default=embed_dim // heads),
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
    fields.finish(_IGNORED | GENERATION)
    return PretrainedConfig(decoder, model_type, positions, dict(raw))


@functools.cache
def defaults(model_type: str) -> Mapping[str, Any]:
    """Default values of transformers for absent keys, by key, for one of `ARCHITECTURES`."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would warn that PyTorch is missing
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise WeightsError(
            "pretrained models need the package transformers; pip install 'transformers>=5.17,<6'", key="transformers"
        ) from error
    config = AutoConfig.for_model(model_type)
    values = {field.name: field.default for field in dataclasses.fields(config)}
    return {**values, "rope_theta": config.rope_parameters["rope_theta"]}


def _rope(fields: Fields, positions: int) -> tuple[float, Llama3Scaling | None]:
    """Base and scaling of the rotary frequencies."""
    new, old = fields.take("rope_parameters"), fields.take("rope_scaling")
    if new and old:
        raise fields.error("rope_scaling", "null, because rope_parameters has the same meaning; remove one of them")
    for key, value in (("rope_parameters", new), ("rope_scaling", old)):
        if value is not None and not isinstance(value, dict):
            raise fields.error(key, "an object with keys, or null")
    name = "rope_parameters" if new else "rope_scaling"
    rope = Fields(
        new or old or {},
        f"{fields.where}: {name}",
        {"rope_theta": fields.number("rope_theta"), "original_max_position_embeddings": positions},
    )
    theta = rope.number("rope_theta")
    if theta != fields.number("rope_theta") and "rope_theta" in fields.raw:
        raise fields.error("rope_theta", f"{theta}, the value of this name in {name}")
    rope.only({"partial_rotary_factor": (1,), "rope_type": _ROPE_TYPES, "type": _ROPE_TYPES})  # "type" is older
    rope_types = {rope.raw.get("rope_type"), rope.raw.get("type")} - {None}
    if len(rope_types) > 1:
        raise rope.error("type", f"{rope.raw['rope_type']!r}, the value of rope_type")
    scaling = None
    if rope_types == {"llama3"}:
        with naming(rope.where):
            scaling = Llama3Scaling(
                factor=rope.number("factor"),
                low_freq_factor=rope.number("low_freq_factor"),
                high_freq_factor=rope.number("high_freq_factor"),
                original_positions=rope.integer("original_max_position_embeddings", MAX_SIZES["positions"]),
            )
    rope.finish()
    return theta, scaling


def _windows(fields: Fields, model_type: str, layers: int) -> tuple[int, ...]:
    """Window of each layer, for `DecoderConfig.windows`.

    With a window of w, position q sees k > q - w, both in transformers and here.
    """
    is_qwen = model_type in ("qwen2", "qwen3")
    window = first = 0
    if is_qwen:
        first = fields.integer("max_window_layers", MAX_SIZES["layers"], least=0)
        fields.take("sliding_window")  # has no effect unless use_sliding_window is true
    if model_type == "mistral" or (is_qwen and fields.flag("use_sliding_window")):
        window = fields.integer("sliding_window", MAX_SIZES["positions"], default=0)
    usual = ["sliding_attention" if window and i >= first else "full_attention" for i in range(layers)]
    layer_types = fields.take("layer_types") or usual
    if (
        not isinstance(layer_types, list)
        or len(layer_types) != layers
        or not all(k in _LAYER_TYPES for k in layer_types)
    ):
        raise fields.error("layer_types", f"one of {' or '.join(_LAYER_TYPES)} for each of {layers} layers")
    # Models other than Qwen ignore the list, so a list that disagrees is a mistake.
    if (layer_types != usual and not is_qwen) or ("sliding_attention" in layer_types and not window):
        raise fields.error("layer_types", f"a list that agrees with the window of {window} positions")
    sizes = tuple(window if kind == "sliding_attention" else 0 for kind in layer_types)
    return sizes if any(sizes) else ()
