"""A short run on the items of a maze service."""

import tiny_run

CONFIG = """
tasks: [{env: maze, groups: 2, items: 0-11, held_out: 12-20, validation: 21-24}]
prompt: {style: bare, max_turns: 3, max_response_tokens: 10}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
env: {url: local, observation_tokens: 96, deadline: 60.0}
rollout: {group_size: 2, context_tokens: 360, prefill_chunk: 32}
algo: {preset: grpo, minibatches: 2}
optim: {lr: 0.01}
imitation: {levels: 8, plans: random, steps: 25, batch: 4, lr: 0.03}
train: {iterations: 4, checkpoint_every: 2, validate_every: 2, validation_episodes: 4, trajectories_every: 2}
evaluation: {episodes: 4}
"""
TIMES = ("time/", "env/wait_share")


def rows(folder):
    return [{key: value for key, value in row.items() if not key.startswith(TIMES)} for row in tiny_run.metrics(folder)]
