"""Which turns are imitated in demonstrations in which a random policy sometimes acts."""

import jax
import numpy as np
import yaml

from agentrl_jax.config import decode
from agentrl_jax.rollout.envs.level_splits import level_splits
from agentrl_jax.services.shadow_env import NoisyOracle
from agentrl_jax.setup import build, service_demonstrations
from agentrl_jax.setup.service_tasks import Services, batched_envs
from agentrl_jax.setup.start import demonstration_rows

CONFIG = """
tasks: [{env: textcraft, groups: 2, items: 0-7, held_out: 12-13}]
prompt: {style: bare, max_turns: 8, max_response_tokens: 80}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
env: {url: local, observation_tokens: 1400}
rollout: {group_size: 2, context_tokens: 3000}
algo: {preset: grpo}
imitation: {levels: 8, steps: 1, batch: 2, noise: 0.4}
train: {iterations: 1, validate_every: 0, validation_episodes: 2}
evaluation: {episodes: 2}
"""


def test_turns_of_the_random_player_are_read_and_not_imitated(tmp_path, monkeypatch):
    config, imitated = decode(yaml.safe_load(CONFIG)), {}

    class Recorded(NoisyOracle):
        def __init__(self, service, item, noise, seed):
            super().__init__(service, item, noise, seed)
            self.noise, self.turn, self.of_item = noise, 0, imitated.setdefault(item, {})

        def act(self, observation):
            action = super().act(observation)
            if not self.noise[self.turn]:
                self.of_item[self.turn] = f" {action}"
            self.turn += 1
            return action

    monkeypatch.setattr(service_demonstrations, "NoisyOracle", Recorded)
    tokenizer = build.load_tokenizer(config.model)
    services = Services(config, lambda: tmp_path)
    batched_env, _ = batched_envs(config, tokenizer, services)
    inputs = config, batched_env, level_splits(batched_env), tokenizer, services, jax.random.key(0)
    found, _ = demonstration_rows(*inputs, report=print)
    rows = jax.tree.map(np.asarray, found)
    taught = []
    for tokens, position, sampled, turn in zip(rows.tokens, rows.position, rows.response_mask, rows.turn):
        said = {t: tokens[position[sampled & (turn == t)]][:-1].tolist() for t in np.unique(turn[sampled]).tolist()}
        taught.append({t: tokenizer.decode(ids) for t, ids in said.items()})
    assert len(taught) > 3
    assert all(turns in imitated.values() for turns in taught)
    assert any(max(turns) >= len(turns) for turns in taught), "no turn of a random player is among them"
