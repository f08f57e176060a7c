"""A run that starts from a tiny pretrained model, and the model."""

import jax

from agentrl_jax.models import decoder
from agentrl_jax.models.io.hf_config_out import describe
from agentrl_jax.models.io.load import save_pretrained
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.text import tokenizer as tokenizers

SHAPE = DecoderConfig(
    vocab_size=480,  # more than the tokenizer has, as Qwen's embedding has
    num_layers=2,
    embed_dim=16,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_width=16,
    qkv_bias=True,
)
RUN = """
tasks: [{env: FrozenLake, groups: 2}]
prompt: {max_turns: 2, max_actions_per_turn: 2, max_actions: 10, max_response_tokens: 6}
model: {pretrained: MODEL, critic: separate, CHANGES}
rollout: {group_size: 2}
algo: {preset: starpo}
optim: {lr: 0.01}
imitation: {levels: 4, steps: 5, batch: 4, lr: 0.03}
train: {iterations: 2, checkpoint_every: 1, validate_every: 2, validation_episodes: 4}
evaluation: {episodes: 4}
"""
CHANGES = {
    "lora": "lora: {rank: 2, targets: [query, down]}, precision: bfloat16",
    "upper": "lora: {rank: 2, targets: [query, down]}, frozen_layers: 1",
    "frozen": "frozen_layers: 1, remat: dots",
    "whole": "precision: mixed",
}


def write_model(path):
    """Writes the model with the shipped tokenizer, in Hugging Face's layout."""
    params = decoder.init_params(jax.random.key(3), SHAPE)
    files = {"tokenizer.json": tokenizers.load_small().backend.to_str().encode()}
    save_pretrained(path, params, describe(SHAPE, max_positions=512), files=files)
    return path


def config(model, kind):
    return RUN.replace("MODEL", str(model)).replace("CHANGES", CHANGES[kind])
