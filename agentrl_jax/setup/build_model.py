"""From a configuration to its model: tokenizer, weights, first state, optimizer."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax

from agentrl_jax.algos import optimizers
from agentrl_jax.algos.optimizers import Optimizer
from agentrl_jax.config import Config, ModelConfig
from agentrl_jax.config.schema import MeshConfig
from agentrl_jax.errors import UserError
from agentrl_jax.learner.state import Kept, TrainState, init_state
from agentrl_jax.models import quantized
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.models.io.load import Pretrained, load_pretrained
from agentrl_jax.models.io.stacked import Placement
from agentrl_jax.models.lora import LoraConfig
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.text import tokenizer as tokenizers
from agentrl_jax.text.tokenizer import Tokenizer


def load_model(config: ModelConfig, sharding: Placement = None, *, weights: bool = True) -> Pretrained | None:
    """Loads the pretrained model that is named, if any, with parameters in the dtype of frozen parameters.

    Without `weights` it has no parameters, only its configuration and the files of its tokenizer.
    """
    if not config.pretrained:
        return None
    return load_pretrained(
        config.pretrained,
        dtype="bfloat16" if config.precision == "bfloat16" else "float32",
        sharding=sharding,
        online=config.online,
        revision=config.revision or None,
        weights=weights,
    )


def tokenizer_files(config: ModelConfig, pretrained: Pretrained | None = None) -> Mapping[str, bytes]:
    """Returns the tokenizer files of the pretrained model or of the configured path, else of the shipped tokenizer."""
    if pretrained is not None:
        return pretrained.files
    return tokenizers.read(config.tokenizer) if config.tokenizer else tokenizers.small_files()


def load_tokenizer(config: ModelConfig, pretrained: Pretrained | None = None) -> Tokenizer:
    """Loads the tokenizer from `tokenizer_files`."""
    source = config.pretrained or config.tokenizer or "the shipped tokenizer"
    tokenizer = tokenizers.from_files(tokenizer_files(config, pretrained), source)
    return tokenizers.padded(tokenizer, pretrained.config.decoder.vocab_size) if pretrained else tokenizer


def build_model(
    config: Config, tokenizer: Tokenizer, pretrained: Pretrained | None = None, *, shared_prefix_len: int = 0
) -> ActorCritic:
    """Builds policy and critic (GRPO has none). For a learner, pass the batched environment's `shared_prefix_len`."""
    c = config.model
    activations = "float32" if c.precision == "float32" else "bfloat16"
    shape = pretrained.config.decoder if pretrained else _fresh_shape(c, tokenizer.vocab_size)
    lora = LoraConfig(rank=c.lora.rank, alpha=c.lora.alpha, targets=c.lora.targets) if c.lora.rank else None
    cache_dtype = "" if c.cache == "activations" else c.cache
    return ActorCritic(
        decoder=dataclasses.replace(shape, dtype=activations, cache_dtype=cache_dtype, attention=c.attention),
        critic=c.critic if config.algo.advantage.has_critic else "none",
        shared_prefix_len=shared_prefix_len,
        lora=lora,
        frozen_layers=c.frozen_layers,
        remat=c.remat,
    )


def rollout_model(config: Config, model: ActorCritic) -> ActorCritic:
    """The model as it plays training episodes, quantized if `rollout.quantization` says so."""
    changed: dict[str, Any] = dict.fromkeys(quantized.INTEGERS[config.rollout.quantization], "int8")
    return dataclasses.replace(model, decoder=dataclasses.replace(model.decoder, **changed))


def _fresh_shape(c: ModelConfig, vocab_size: int) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=vocab_size,
        num_layers=c.layers,
        embed_dim=c.embed_dim,
        num_heads=c.heads,
        num_kv_heads=c.kv_heads,
        head_dim=c.embed_dim // c.heads,
        mlp_width=c.mlp_width,
        rope_theta=c.rope_theta,
        norm_eps=c.norm_eps,
        tied_embeddings=c.tied_embeddings,
    )


def initial_state(
    config: Config,
    model: ActorCritic,
    pretrained: Pretrained | None,
    place: Callable[[TrainState], Any] = lambda shapes: None,
) -> Callable[[jax.Array], TrainState]:
    """Returns a function from a key to the initial training state.

    It takes over (donates) the parameters of `pretrained` instead of copying them, so it can be called only once.
    `place` returns the shardings of a state from its shapes; None leaves them to the compiler.
    """
    tx, kept = build_optimizer(config), kept_by(config)

    def start(key, decoder):
        return init_state(key, model, tx, kept, decoder)

    given = None if pretrained is None else pretrained.params
    shardings = place(jax.eval_shape(start, jax.random.key(0), given))
    parts = ("initial_state", model, tx, kept, jax.tree.flatten(shardings))
    compiled = jit_once(start, parts, donate_argnums=1, out_shardings=shardings)

    def run(key):
        with warnings.catch_warnings():
            # A stack of layers that is split in two cannot be reused; it is freed instead.
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            return compiled(key, given)

    return run


def check_divided(mesh: MeshConfig, shape: DecoderConfig) -> None:
    """Refuses devices that would share a decoder's matrices, but share none, because nothing can be divided by them.

    Raises:
        UserError: `mesh.fsdp` does not divide the embedding, or `mesh.tensor` neither the heads nor the inner size of
            the feed-forward layer.
    """
    if shape.embed_dim % mesh.fsdp:
        raise UserError.of(
            "mesh.fsdp",
            mesh.fsdp,
            f"which does not divide the embedding of {shape.embed_dim}, so that every device would hold all "
            "parameters; use a divisor",
        )
    if shape.num_heads % mesh.tensor and shape.mlp_width % mesh.tensor:
        raise UserError.of(
            "mesh.tensor",
            mesh.tensor,
            f"which divides neither the model's {shape.num_heads} heads nor its feed-forward layers of "
            f"{shape.mlp_width}, so that every device would compute all of it; use a divisor",
        )


def kept_by(config: Config) -> Kept:
    """What the training state of a run keeps besides parameters and optimizer."""
    algo = config.algo
    teacher = algo.distillation.teacher if algo.distillation.kind == "self" else ""
    measured = algo.kl.kind != "none" or config.train.mutual_information_every > 0
    return Kept(
        reference=measured or teacher == "reference",
        teacher=teacher == "ema",
        average=config.optim.average_rate > 0,
        entropy_coef=None if algo.entropy_target is None else algo.entropy_coef,
    )


def build_optimizer(config: Config) -> Optimizer:
    """Builds the optimizer of a run with learning rate 1, see `optimizers.optimizer`."""
    return optimizers.optimizer(config.optim.of_program())
