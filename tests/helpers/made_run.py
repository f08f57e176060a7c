"""A tiny model with a chat template, runs that start from it, and folders of runs that are made without training."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import yaml

from agentrl_jax.config import decode, save_resolved
from agentrl_jax.models import decoder
from agentrl_jax.models.io.hf_config_out import describe
from agentrl_jax.models.io.load import save_pretrained
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.runs.checkpoint import Checkpoints
from agentrl_jax.setup import build_inputs, build_model
from agentrl_jax.text import tokenizer as tokenizers

SHAPE = DecoderConfig(
    vocab_size=480, num_layers=2, embed_dim=16, num_heads=2, num_kv_heads=1, head_dim=8, mlp_width=16, qk_norm=True
)
"""More tokens than the tokenizer has, as Qwen's embedding has."""

TEMPLATE = """
{%- for m in messages %}{{- '<|' ~ m.role ~ '|>' ~ m.content ~ '<|end|>' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""
THINKING = TEMPLATE.replace(
    "'<|assistant|>'", "'<|assistant|>' ~ ('<think></think>' if enable_thinking is false else '')"
)
"""Starts a response with an empty think block if no thought is wanted, like Qwen3's template."""

RUN = """
tasks: [{env: FrozenLake, groups: 2}]
prompt: {max_turns: 2, max_actions_per_turn: 2, max_actions: 10, max_response_tokens: 6}
rollout: {group_size: 2}
algo: {preset: starpo}
"""
PRETRAINED = f"""{RUN}
model: {{pretrained: MODEL, critic: separate, CHANGES}}
optim: {{lr: 0.01}}
imitation: {{levels: 4, steps: 5, batch: 4, lr: 0.03}}
train: {{iterations: 2, checkpoint_every: 1, validate_every: 2, validation_episodes: 4}}
evaluation: {{episodes: 4}}
"""
FRESH = "layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16"
CHANGES = {
    "lora": "lora: {rank: 2, targets: [query, down]}, precision: bfloat16",
    "upper": "lora: {rank: 2, targets: [query, down]}, frozen_layers: 1",
    "frozen": "frozen_layers: 1, remat: dots",
    "whole": "precision: mixed",
}


def pretrained_config(model: Path, kind: str) -> str:
    return PRETRAINED.replace("MODEL", str(model)).replace("CHANGES", CHANGES[kind])


def write_model(folder: Path, template: str = TEMPLATE, positions: int = 512) -> Path:
    settings = {"eos_token": "<|end|>", "pad_token": "<|pad|>", "chat_template": template}
    files = tokenizers.small_files() | {"tokenizer_config.json": json.dumps(settings).encode()}
    params = decoder.init_params(jax.random.key(3), SHAPE)
    description = describe(SHAPE, max_positions=positions, eos_token_id=1, pad_token_id=0)
    save_pretrained(folder, params, description, files=files)
    return folder


def write_run(folder: Path, model: str = FRESH, prompt: str = "") -> Path:
    """Writes the folder of a run with changed parameters; `model` and `prompt` are keys of these sections."""
    data = yaml.safe_load(RUN) | {"model": yaml.safe_load(f"{{{model}}}")}
    data["prompt"] |= yaml.safe_load(f"{{{prompt}}}")
    config = decode(data, source="made run")
    folder.mkdir()
    save_resolved(config, folder / "config.yaml")
    pretrained = build_model.load_model(config.model)
    tokenizer = build_model.load_tokenizer(config.model, pretrained)
    start = build_model.initial_state(config, build_model.build_model(config, tokenizer, pretrained), pretrained)
    state = start(jax.random.key(0))

    def moved(leaf):
        return leaf + 0.05 * jnp.sin(jnp.arange(leaf.size, dtype=jnp.float32)).reshape(leaf.shape)

    state = state.replace(
        params=jax.tree.map(moved, state.params), frozen_params=None, stage=jnp.int32(1), step=jnp.int32(7)
    )
    with Checkpoints(folder / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(7, state)
    return folder


def first_prompt(config, batched_env, *items) -> list[int]:
    settings = build_inputs.rollout_settings(config, batched_env, 1, 0.0)
    message = batched_env.reset(jax.random.key(0), settings, build_inputs.evaluation_ids(np.arange(1), 0, *items))[1]
    return [*batched_env.prefix[0].tolist(), *message.tokens[0, : int(message.length[0])].tolist()]


def next_logprobs(params, shape, length):
    """Returns a function from at most `length` tokens to the log-probabilities of the next one, by a whole pass."""

    @jax.jit
    def after(tokens, count):
        logits = decoder.logits(params, decoder.forward(params, shape, tokens[None]))
        return jax.nn.log_softmax(logits[0, count - 1])

    return lambda ids: after(jnp.array(ids + [0] * (length - len(ids))), len(ids))
