"""A configuration of a kind of environments that the product does not know, which is registered for each test."""

import stories

from agentrl_jax.environments import kinds

CONFIG = """
tasks: [{env: "story:2", groups: 2, items: 0-7, held_out: 8-11}]
prompt: {style: bare, max_turns: 2, max_response_tokens: 6}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
env: {observation_tokens: 16}
rollout: {group_size: 2}
algo: {preset: grpo, filter: none}
train: {iterations: 1, trajectories_every: 1, validation_episodes: 4}
evaluation: {episodes: 4}
"""


def register(monkeypatch):
    monkeypatch.setattr(kinds, "_kinds", [*kinds._kinds])
    kinds.register(stories.KIND)
