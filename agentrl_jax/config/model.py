"""The decoder of a run, its critic, and their adapters."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from agentrl_jax.config.fields import AboveZero, Count, Section, Size

Target = Literal["query", "key", "value", "output", "gate", "up", "down"]
TARGETS: tuple[Target, ...] = get_args(Target)
"""Weight matrices of a decoder that can have an adapter."""


class LoraSettings(Section):
    """LoRA: low-rank adapters that are trained instead of the decoder."""

    rank: Count = 0
    """Rank of the adapters; 0 trains the decoder itself."""
    alpha: AboveZero = 32.0
    """The output of an adapter is multiplied by alpha / rank."""
    targets: Annotated[tuple[Target, ...], Field(min_length=1)] = TARGETS
    """Matrices of every layer that have an adapter."""


class ModelConfig(Section):
    """The decoder and its critic."""

    pretrained: str = ""
    """Pretrained decoder, with its shape and tokenizer: a folder in Hugging Face's format, a .gguf file, or
    smollm2-135m; with online also a repository (org/name) of the Hub. Empty: a new decoder with random parameters and
    the shape below."""
    online: bool = False
    """Download the pretrained model from the Hub if there is no such folder or file."""
    revision: str = ""
    """Branch, tag or commit on the Hub; only a commit always gives the same weights; empty: the main branch."""
    tokenizer: str = ""
    """A tokenizer.json or a folder with one and its chat template; empty: the pretrained model's, else the small
    default."""
    layers: Size = 4
    """Transformer layers."""
    embed_dim: Size = 128
    """Size of the residual stream."""
    heads: Size = 4
    """Attention heads; must divide embed_dim."""
    kv_heads: Size = 2
    """Key and value heads; must divide heads."""
    mlp_width: Size = 384
    """Inner size of the gated feed-forward layer."""
    rope_theta: AboveZero = 10000.0
    """Base of the rotary position embedding."""
    norm_eps: AboveZero = 1e-6
    """Added to the mean square inside RMSNorm."""
    tied_embeddings: bool = True
    """Use the token embedding as the output matrix too."""
    critic: Literal["shared", "separate"] = "shared"
    """shared: a value head on the policy's last hidden state; separate: a second decoder with its own parameters."""
    lora: LoraSettings = LoraSettings()
    """LoRA adapters; a separate critic has its own adapters on the same decoder."""
    frozen_layers: Count = 0
    """Number of first layers that are frozen, together with the embedding, or that have no adapter; 0: none. No
    gradient is computed through these layers, which saves up to half of its time."""
    precision: Literal["float32", "mixed", "bfloat16"] = "float32"
    """float32; mixed: bfloat16 activations; bfloat16: frozen parameters too. Trained parameters, norms, softmax,
    log-probabilities and losses are always float32."""
    cache: Literal["activations", "float32"] = "activations"
    """Data type of the KV cache of a rollout. float32 takes twice the memory of bfloat16 activations and is faster on
    CPUs, which convert bfloat16 first; the values are the same."""
    remat: Literal["none", "dots", "full"] = "none"
    """What the backward pass recomputes instead of storing. none: the attention scores only; dots: everything except
    products with parameters and attention outputs; full: everything in a layer."""
    attention: Literal["auto", "blocks", "cudnn", "splash"] = "auto"
    """Attention over whole rows, while learning. blocks: plain JAX, for all devices; cudnn: a kernel for NVIDIA GPUs,
    with bfloat16 activations; splash: a kernel for TPUs. auto: the kernel of the devices where it serves, else
    blocks."""
