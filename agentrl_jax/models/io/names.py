"""Names of all parameters: in this project, in Hugging Face's files, and in GGUF files.

Our matrices are [In, Out] and stacked over layers, [N, In, Out]; both file formats store [Out, In], one per layer. The
embedding is [V, D] everywhere; `lm_head` is [D, V] here and [V, D] in files.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Literal

from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.models.shape import DecoderConfig

Style = Literal["hf", "gguf"]

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
HF_LAYER = "model.layers.{}."
_GGUF_LAYER = "blk.{}."

TIED_HEAD = _OUTER["lm_head"][0]
"""Key of the output matrix, which some files contain even if embeddings are tied."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One of our arrays and where a file stores it.

    Attributes:
        shape: shape of our array.
        keys: names in the file: one per layer if the array is stacked, otherwise a single one.
        stacked: the first axis is the layer.
        transposed: the file stores the last two axes in the opposite order.
    """

    shape: tuple[int, ...]
    keys: tuple[str, ...]
    stacked: bool
    transposed: bool

    @property
    def file_shape(self) -> tuple[int, ...]:
        """Shape of each tensor in the file."""
        inner = self.shape[1:] if self.stacked else self.shape
        return inner[::-1] if self.transposed else inner


def leaves(config: DecoderConfig, style: Style) -> dict[str, Leaf]:
    """Every array of a decoder by path, such as `layers/query`, in the order of the files."""
    column = 0 if style == "hf" else 1
    outer = {
        "embedding": (config.vocab_size, config.embed_dim),
        "final_norm": (config.embed_dim,),
        "lm_head": (config.embed_dim, config.vocab_size),
    }
    if config.tied_embeddings:
        del outer["lm_head"]
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


def check_shapes(
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    where: str,
    harmless: Collection[str] = (),
) -> None:
    """Refuses tensors that are missing, unexpected or of the wrong shape, all in one message.

    Args:
        wanted: shape of each expected tensor, by name.
        found: shape of each tensor in the file, by name.
        where: file name for the message.
        harmless: tensors that may be present but are not needed.

    Raises:
        WeightsError: the two differ.
    """
    missing = [key for key in wanted if key not in found]
    unexpected = [key for key in found if key not in wanted and key not in harmless]
    odd = [
        f"{key} is {list(found[key])}, expected {list(shape)}"
        for key, shape in wanted.items()
        if key in found and tuple(found[key]) != shape
    ]
    parts = [
        f"{kind} {'; '.join(items[:6])}" + (f" and {len(items) - 6} more" if len(items) > 6 else "")
        for kind, items in (("missing", missing), ("unexpected", unexpected), ("mis-shaped", odd))
        if items
    ]
    if parts:
        raise WeightsError(f"{where}: does not fit its configuration: {' | '.join(parts)}; use the files of one model")
