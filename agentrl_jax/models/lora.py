"""Low-rank adapters (Hu et al. 2021): a second tree of parameters for a frozen decoder.

The adapted product is x W + (alpha / r) (x a) b; W itself is unchanged.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from agentrl_jax.config.model import TARGETS
from agentrl_jax.errors import BadValue
from agentrl_jax.models.shape import DecoderConfig

Adapter = dict[str, dict[str, Float[Array, "_ _ _"]]]
"""{name: {"a": f32[N, In, r], "b": f32[N, r, Out]}} for some matrices of `DecoderConfig.layer_shapes`; N layers are all
of the decoder, or those under "layers" if the first ones are separate (see `decoder.Params`)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Rank r, numerator of the scale alpha / r, and names of the adapted matrices."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = TARGETS

    def __post_init__(self):
        if self.rank < 1:
            raise BadValue(f"LoRA rank {self.rank}; expected at least 1", key="rank", value=self.rank)
        unknown = [name for name in self.targets if name not in TARGETS]
        if unknown or not self.targets:
            raise BadValue(
                f"LoRA targets {list(self.targets)}; expected some of {', '.join(TARGETS)}",
                key="targets",
                value=self.targets,
            )

    @property
    def scale(self) -> float:
        """The factor alpha / r of the product of the two small matrices."""
        return self.alpha / self.rank


def init_adapter(key: Key[Array, ""], config: DecoderConfig, lora: LoraConfig, layers: int | None = None) -> Adapter:
    """An initial adapter, which changes nothing yet: a uniform in +-In**-0.5, b zero (PEFT's initialization).

    `layers` is N; None: all layers of the decoder.
    """
    shapes = config.layer_shapes()
    layers = config.num_layers if layers is None else layers
    adapter = {}
    for name, part in zip(lora.targets, jax.random.split(key, len(lora.targets))):
        inputs, outputs = shapes[name]
        bound = inputs**-0.5
        adapter[name] = {
            "a": jax.random.uniform(part, (layers, inputs, lora.rank), jnp.float32, -bound, bound),
            "b": jnp.zeros((layers, lora.rank, outputs), jnp.float32),
        }
    return adapter


def on_all_layers(adapter: Adapter, first: int) -> Adapter:
    """Extends an adapter without the `first` layers to all layers, with zeros, which change nothing."""
    return jax.tree.map(lambda x: jnp.concatenate([jnp.zeros((first, *x.shape[1:]), x.dtype), x]), adapter)


def attach(params: Any, adapter: Adapter, lora: LoraConfig) -> Any:
    """Stacked parameters with the adapter attached; no base matrix is copied."""
    added: dict[str, jax.Array] = {}
    for name, pair in adapter.items():
        added |= {f"{name}_lora_a": pair["a"], f"{name}_lora_b": lora.scale * pair["b"]}
    return {**params, "layers": params["layers"] | added}


def merge(params: Any, adapter: Adapter, lora: LoraConfig) -> Any:
    """Stacked parameters with the adapter merged into the base matrices."""
    layers = dict(params["layers"])
    for name, pair in adapter.items():
        change = lora.scale * jnp.matmul(pair["a"], pair["b"], preferred_element_type=jnp.float32)
        layers[name] = (layers[name].astype(jnp.float32) + change).astype(layers[name].dtype)
    return {**params, "layers": layers}
