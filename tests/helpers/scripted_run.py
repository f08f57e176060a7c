"""Iterations of a run in which every response is written beforehand, and their records."""

import types
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_agent import TOKENIZER

from agentrl_jax.config import Config
from agentrl_jax.rollout import engine
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.runs.rollout_records import Header, RolloutRecord
from agentrl_jax.setup import build
from agentrl_jax.train.horizon import Horizon
from agentrl_jax.train.iteration import play
from agentrl_jax.train.run import Run

SCRIPTS = 16
"""Scripts of each task; the number of an episode decides which one it follows."""


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
        """The record of all episodes of an iteration, from 1, with the inputs and the programs of the run."""
        run, config, group_size = self.run, self.config, self.config.rollout.group_size
        horizon = Horizon(config.algo.horizon, config.prompt.max_turns)
        run.progress = types.SimpleNamespace(roll_backs=types.SimpleNamespace(count=roll_backs), horizon=horizon)
        inputs = run._inputs(iteration - 1)

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
        header = Header(
            step=iteration,
            iteration=iteration,
            roll_backs=roll_backs,
            tasks=tuple(task.label for task in config.tasks),
            group_size=group_size,
            episodes=len(inputs.ids.group),
            horizon=int(inputs.rollout.horizon),
            temperature=config.rollout.temperature,
        )
        return record_of(played.trajectory, header)


def place(script, number):
    """A key that holds two numbers instead of bits."""
    return jax.random.wrap_key_data(jnp.stack([script, number], axis=1).astype(jnp.uint32))


def record_of(trajectory: Trajectory, header: Header) -> RolloutRecord:
    """The record of a trajectory, without what a learner computes."""
    rows = jax.device_get(trajectory)
    unknown = np.full(rows.response.tokens.shape, np.nan, np.float32)
    whole = ("prompt", "prompt_length", "observation", "observation_length", "num_turns", "truncation", "overflow")
    of_turn = ("actions", "reward", "valid", "format_error", "state_hash", "terminated", "success", "failed")
    return RolloutRecord(
        header,
        **{name: getattr(rows.ids, name) for name in ("task", "group", "member", "level")},
        **{name: getattr(rows, name) for name in (*whole, "final_observation", "final_observation_length")},
        **{name: getattr(rows.turn, name) for name in of_turn},
        **{name: getattr(rows.response, name) for name in ("tokens", "length", "logprob")},
        learner_logprob=unknown,
        entropy=unknown,
        advantage=np.zeros_like(unknown),
        trained=rows.response_mask,
        attempt=np.zeros_like(rows.turn.format_error),
    )
