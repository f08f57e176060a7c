"""Demonstrations by the player that acts at random."""

import jax
import numpy as np
import yaml
from demonstrated import LAKE, LEVELS, demonstrated, make_batched_env

from agentrl_jax.config import decode
from agentrl_jax.rollout.contexts import SINGLE_TURN
from agentrl_jax.rollout.envs.level_splits import level_splits
from agentrl_jax.services.shadow_env import NoisyOracle
from agentrl_jax.setup import build_model, service_demonstrations
from agentrl_jax.setup.service_tasks import Services, batched_envs
from agentrl_jax.setup.start import demonstration_rows
from agentrl_jax.text.tokenizer import load_small


def test_random_plans_are_uniform_and_said_as_the_grammar_reads_them():
    batched_env = make_batched_env("Bandit", LAKE, actions=2)
    trajectory, _ = demonstrated(batched_env, "random", SINGLE_TURN)
    task, actions = trajectory.ids.task, trajectory.turn.actions
    assert np.bincount(task).tolist() == [LEVELS] * 2
    for index, of_task in enumerate(batched_env.tasks):
        assert set(actions[task == index].flat) - {-1} == set(range(of_task.env.num_actions))
    assert not trajectory.turn.format_error[trajectory.turn_mask].any()
    for row in range(len(task)):
        response = trajectory.response.tokens[row, 0, : trajectory.response.length[row, 0]]
        text = load_small().decode(response.tolist())
        said = text.removeprefix("</think><answer>").removesuffix("</answer>").split("||")
        executed = [batched_env.tasks[task[row]].env.actions[a] for a in actions[row, 0] if a >= 0]
        assert said[: len(executed)] == executed
        assert 1 <= len(said) <= 2


SERVED = """
tasks: [{env: textcraft, groups: 2, items: 0-7, held_out: 12-13}]
prompt: {style: bare, max_turns: 8, max_response_tokens: 80}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
env: {url: local, observation_tokens: 1400}
rollout: {group_size: 2, context_tokens: 3000}
imitation: {levels: 8, steps: 1, batch: 2, noise: 0.4}
train: {validation_episodes: 2}
"""


def test_turns_of_the_random_player_are_read_and_not_imitated(tmp_path, monkeypatch):
    config, imitated = decode(yaml.safe_load(SERVED)), {}

    class Recorded(NoisyOracle):
        def __init__(self, service, item, noise, seed):
            super().__init__(service, item, noise, seed)
            self.turns, self.of_item = enumerate(noise), imitated.setdefault(item, {})

        def act(self, observation):
            turn, at_random = next(self.turns)
            action = super().act(observation)
            self.of_item |= {} if at_random else {turn: f" {action}"}
            return action

    monkeypatch.setattr(service_demonstrations, "NoisyOracle", Recorded)
    tokenizer = build_model.load_tokenizer(config.model)
    services = Services(config, lambda: tmp_path)
    batched_env, _ = batched_envs(config, tokenizer, services)
    inputs = config, batched_env, level_splits(batched_env), tokenizer, services, jax.random.key(0)
    rows, taught = jax.tree.map(np.asarray, demonstration_rows(*inputs, report=print)[0]), []
    for tokens, position, sampled, turn in zip(rows.tokens, rows.position, rows.response_mask, rows.turn):
        said = {t: tokens[position[sampled & (turn == t)]][:-1].tolist() for t in np.unique(turn[sampled]).tolist()}
        taught.append({t: tokenizer.decode(ids) for t, ids in said.items()})
    assert len(taught) > 3
    assert all(turns in imitated.values() for turns in taught)
    assert any(max(turns) >= len(turns) for turns in taught), "no turn of a random player is among them"
