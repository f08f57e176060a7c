"""The scripts of benchmarks/, imported from their folder, and small inputs for them."""

import importlib
import sys

import jax
import made_run
from paths import ROOT

from agentrl_jax.config import decode
from agentrl_jax.models import decoder
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.text import tokenizer as tokenizers

PHASES = """
tasks: [{env: Bandit, groups: 4}]
prompt: {max_turns: 2, max_response_tokens: 4}
rollout: {group_size: 2}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
algo: {preset: grpo, minibatches: 1, grad_accum_steps: 2}
"""
TOKENIZATION = decode(
    {
        "tasks": [{"env": "FrozenLake-deterministic", "groups": 1}, {"env": "Bandit", "groups": 1}],
        "prompt": {"max_turns": 2, "max_actions_per_turn": 2, "max_actions": 6, "max_response_tokens": 8},
        "rollout": {"context": "single_turn"},
        "algo": {"preset": "starpo_grpo"},
    }
)
MODEL = ActorCritic(decoder=made_run.SHAPE, critic="none")


def script(name):
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def tokenizer():
    return tokenizers.padded(tokenizers.load_small(), made_run.SHAPE.vocab_size)


def params():
    return {"policy": decoder.init_params(jax.random.key(3), made_run.SHAPE)}
