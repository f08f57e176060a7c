"""Iterations with boards in which every response is written beforehand, their records, and what their episodes read."""

import dataclasses
import types
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from toy_agent import TOKENIZER

from agentrl_jax.config import Config, decode
from agentrl_jax.rollout import engine
from agentrl_jax.runs.rollout_records import Header, RolloutRecord
from agentrl_jax.setup import build
from agentrl_jax.train.horizon import Horizon
from agentrl_jax.train.iteration import play
from agentrl_jax.train.run import Run

SCRIPTS = 16
"""Scripts of each task; the number of an episode decides which one it follows."""
MOVES = ("Left", "Down", "Right", "Up")
COMMON = """
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
algo: {preset: starpo}
"""
LAKE_SYMBOLS = {
    **{"ice": "_", "ice+start": "_", "ice+hole": "O", "ice+goal": "G", "ice+player": "P", "ice+start+player": "P"},
    **{"ice+hole+player+fallen": "X", "ice+goal+player+arrived": "√"},
}


def load(text):
    return decode(yaml.safe_load(text + COMMON), source="test")


class ScriptedRun:
    """A run whose responses are random `actions` of each environment, and now and then nonsense."""

    def __init__(self, config: Config, actions: Mapping[str, Sequence[str]]):
        self.config, self.run = config, Run(config)
        parts = self.run.parts
        self.state = build.initial_state(config, parts.model, None)(parts.key)
        draw, prompt = np.random.default_rng(0), config.prompt
        shape = len(config.tasks) * SCRIPTS, prompt.max_turns, prompt.max_response_tokens
        self.tokens = np.zeros(shape, np.int32)
        for number, script in enumerate(self.tokens):
            names = actions[config.tasks[number // SCRIPTS].env]
            for response in script:
                chosen = draw.choice(names, size=draw.integers(1, prompt.max_actions_per_turn, endpoint=True))
                text = "||".join(chosen) if draw.random() < 0.9 else "I wait"
                tokens = [*TOKENIZER.encode(f"{text}</answer>"), TOKENIZER.end_of_turn_id]
                response[: len(tokens)] = tokens[: len(response)]  # longer ones are cut

    def record(self, *, iteration: int, roll_backs: int = 0) -> RolloutRecord:
        """The record of all episodes of an iteration, from 1, with the inputs and the programs of the run.

        As dynamic sampling does, it moves a group to a level with a number beyond those of the run: the first one.
        """
        run, config, group_size = self.run, self.config, self.config.rollout.group_size
        horizon = Horizon(config.algo.horizon, config.prompt.max_turns)
        run.progress = types.SimpleNamespace(roll_backs=types.SimpleNamespace(count=roll_backs), horizon=horizon)
        inputs = run._inputs(iteration - 1)
        group = inputs.ids.group
        moved = jnp.where(group == 0, group.max() + 1, group)
        inputs = inputs._replace(ids=dataclasses.replace(inputs.ids, group=moved))

        def script(key, ids):
            return place(ids.task * SCRIPTS + (ids.group * group_size + ids.member) % SCRIPTS, 0 * ids.task)

        def token(scripts, turn, number):
            return place(jax.random.key_data(scripts)[:, 0], turn * self.tokens.shape[2] + number)

        def read(places, logits, temperature):
            script, number = jax.random.key_data(places).T
            return jnp.asarray(self.tokens.reshape(len(self.tokens), -1))[script, number], jnp.full(len(script), -1.0)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "sample", read)
            patch.setattr(engine.rng, "sample_key", script)
            patch.setattr(engine.rng, "token_key", token)
            played = play(self.state, inputs, run.programs)
        sizes = {"group_size": group_size, "episodes": len(group), "horizon": int(inputs.rollout.horizon)}
        tasks, temperature = tuple(task.label for task in config.tasks), config.rollout.temperature
        header = Header(iteration, iteration, roll_backs, tasks, temperature=temperature, **sizes)
        rows = jax.device_get(played.trajectory)
        unknown = np.full(rows.response.tokens.shape, np.nan, np.float32)
        return RolloutRecord.of_trajectory(header, rows, types.SimpleNamespace(logprob=unknown, entropy=unknown))


def place(script, number):
    return jax.random.wrap_key_data(jnp.stack([script, number], axis=1).astype(jnp.uint32))


def states_read(record, row, found):
    """What an episode read, and the scene of the state that it read: one pair for each turn, then of the last state."""
    for turn in range(record.num_turns[row]):
        before = [scene for scene in found if scene["action"] is None or scene["turn"] < turn]
        yield _text(record.observation[row, turn], record.observation_length[row, turn]), before[-1]
    if record.final_observation_length[row]:
        yield _text(record.final_observation[row], record.final_observation_length[row]), found[-1]


def _text(tokens, length):
    return TOKENIZER.decode(tokens[:length].tolist(), skip_special=False)


def board(scene, symbols):
    return "\n".join("".join(symbols["+".join(cell)] for cell in row) for row in scene["cells"])
