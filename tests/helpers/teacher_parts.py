"""The parts of a run whose teacher reads plans."""

import tiny_run

from agentrl_jax.config import load_config
from agentrl_jax.setup.parts import RunParts

CONFIG = """
tasks: [{env: SimpleSokoban, groups: 2}]
prompt: {max_turns: 4, max_actions_per_turn: 3, max_actions: 12, max_response_tokens: 8}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
rollout: {group_size: 2}
algo: {preset: grpo, distillation: {kind: self, teacher: ema}}
imitation: {levels: 16, steps: 25, batch: 8, hinted: 0.5}
train: {iterations: 1, validate_every: 0, validation_episodes: 8}
evaluation: {episodes: 8}
"""


def made(home):
    return RunParts(load_config(tiny_run.write_config(home, CONFIG)), lambda: home)
