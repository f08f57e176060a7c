"""Names of all parameters: in this project, in Hugging Face's files, and in GGUF files.

Our matrices are [In, Out] and stacked over layers, [N, In, Out]; both file formats store [Out, In], one per layer. The
embedding is [V, D] everywhere; `lm_head` is [D, V] here and [V, D] in files.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Literal

from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.models.shape import DecoderConfig

PROJECTIONS = {
    "query": ("self_attn.q_proj", "attn_q"),
    "key": ("self_attn.k_proj", "attn_k"),
    "value": ("self_attn.v_proj", "attn_v"),
    "output": ("self_attn.o_proj", "attn_output"),
    "gate": ("mlp.gate_proj", "ffn_gate"),
    "up": ("mlp.up_proj", "ffn_up"),
    "down": ("mlp.down_proj", "ffn_down"),
}
"""Names of the matrices of a layer: by our name, those of Hugging Face and of GGUF."""

_NORMS = {
    "attention_norm": ("input_layernorm", "attn_norm"),
    "mlp_norm": ("post_attention_layernorm", "ffn_norm"),
    "query_norm": ("self_attn.q_norm", "attn_q_norm"),
    "key_norm": ("self_attn.k_norm", "attn_k_norm"),
}
_OUTER = {
    "embedding": ("model.embed_tokens.weight", "token_embd.weight"),
    "final_norm": ("model.norm.weight", "output_norm.weight"),
    "lm_head": ("lm_head.weight", "output.weight"),
}
HF_LAYER, _GGUF_LAYER = "model.layers.{}.", "blk.{}."
TIED_HEAD = _OUTER["lm_head"][0]
"""Key of the output matrix, which some files contain even if embeddings are tied."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One of our arrays, of the given shape, and where a file stores it."""

    shape: tuple[int, ...]
    keys: tuple[str, ...]
    """Names in the file: one per layer if the array is stacked, otherwise a single one."""
    stacked: bool
    """The first axis is the layer."""
    transposed: bool
    """The file stores the last two axes in the opposite order."""

    @property
    def file_shape(self) -> tuple[int, ...]:
        """Shape of each tensor in the file."""
        inner = self.shape[1:] if self.stacked else self.shape
        return inner[::-1] if self.transposed else inner


def leaves(config: DecoderConfig, file_format: Literal["hf", "gguf"]) -> dict[str, Leaf]:
    """Every array of a decoder by path, such as `layers/query`, in the order of the files."""
    column = 0 if file_format == "hf" else 1
    vocab_size, embed_dim = config.vocab_size, config.embed_dim
    outer: dict[str, tuple[int, ...]] = {"embedding": (vocab_size, embed_dim), "final_norm": (embed_dim,)}
    if not config.tied_embeddings:
        outer["lm_head"] = (embed_dim, vocab_size)
    layered = {}
    for name, shape in config.layer_shapes().items():
        keys = tuple(_layer_key(name, column, i) for i in range(config.num_layers))
        layered[f"layers/{name}"] = Leaf((config.num_layers, *shape), keys, True, len(shape) == 2)
    single = {name: Leaf(shape, (_OUTER[name][column],), False, name == "lm_head") for name, shape in outer.items()}
    return {"embedding": single.pop("embedding"), **layered, **single}


def _layer_key(name: str, column: int, layer: int) -> str:
    prefix = (HF_LAYER, _GGUF_LAYER)[column].format(layer)
    if name in _NORMS:
        return f"{prefix}{_NORMS[name][column]}.weight"
    kind = "bias" if name.endswith("_bias") else "weight"
    return f"{prefix}{PROJECTIONS[name.removesuffix('_bias')][column]}.{kind}"


def file_shapes(wanted: Mapping[str, Leaf]) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor in the file, by name."""
    return {key: leaf.file_shape for leaf in wanted.values() for key in leaf.keys}


def check_shapes(
    expected: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    where: str,
    ignored: Collection[str] = (),
) -> None:
    """Refuses tensors that are missing, unexpected or of the wrong shape, all in one message; some may be `ignored`."""
    faults = {
        "missing": [key for key in expected if key not in found],
        "unexpected": [key for key in found if key not in expected and key not in ignored],
        "wrong shape:": [
            f"{key} is {list(found[key])}, expected {list(shape)}"
            for key, shape in expected.items()
            if key in found and tuple(found[key]) != shape
        ],
    }
    if parts := [f"{kind} {some_of(items)}" for kind, items in faults.items() if items]:
        raise WeightsError.at(where, f"does not fit its configuration: {' | '.join(parts)}; use the files of one model")


def some_of(items: list[str]) -> str:
    """The first few items of a list, for a message."""
    return "; ".join(items[:6]) + (f" and {len(items) - 6} more" if len(items) > 6 else "")
