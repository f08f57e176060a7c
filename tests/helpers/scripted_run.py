"""Iterations with boards in which every response is written beforehand, their records, and what their episodes read."""

import dataclasses
import functools
import types
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import yaml
from prompt_texts import given_responses
from toy_agent import END, TOKENIZER, text_of

from agentrl_jax.config import Config, decode
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.runs.config_history import ConfigHistory
from agentrl_jax.runs.rollout_records import Header, RolloutRecord
from agentrl_jax.setup import build
from agentrl_jax.setup.play_responses import play_responses
from agentrl_jax.text.grammar import ParsedResponse
from agentrl_jax.text.reference import parse_response
from agentrl_jax.train.horizon import Horizon
from agentrl_jax.train.reinforcement import Reinforcement
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


def first_inputs(parts, horizon, iteration, roll_backs=0):
    """The inputs of an iteration, from 0, of a run without imitation that has not begun."""
    progress = types.SimpleNamespace(
        **{"parts": parts, "folder": None, "view": None, "horizon": horizon, "history": ConfigHistory(parts.config)},
        roll_backs=types.SimpleNamespace(count=roll_backs),
    )
    return Reinforcement(progress, None, first_row=0).inputs(iteration)


class ScriptedRun:
    """A run whose responses are random `actions` of each environment, and now and then nonsense."""

    def __init__(self, config: Config, actions: Mapping[str, Sequence[str]]):
        self.config, self.run = config, Run(config)
        draw, prompt = np.random.default_rng(0), config.prompt

        def text(names):
            chosen = draw.choice(names, size=draw.integers(1, prompt.max_actions_per_turn, endpoint=True))
            return ("||".join(chosen) if draw.random() < 0.9 else "I wait") + "</answer><|end|>"

        tasks = [actions[task.env] for task in config.tasks for _ in range(SCRIPTS)]
        texts = [[text(names) for _ in range(prompt.max_turns)] for names in tasks]
        said = given_responses(TOKENIZER, texts, prompt.max_response_tokens)
        self.scripts = said.tokens, said.length, self._parsed(*jax.device_get((said.tokens, said.length)))

    def _parsed(self, tokens, length):
        """What the host reads in the responses, so that no model is compiled to play them."""
        prompt, (episodes, turns) = self.config.prompt, length.shape
        actions = np.full((episodes, turns, prompt.max_actions_per_turn), -1, np.int32)
        valid, parsed = np.zeros((2, episodes, turns), np.int32)
        good = np.zeros((episodes, turns), bool)
        for row, turn in np.ndindex(episodes, turns):
            env = self.run.parts.train_env.tasks[row // SCRIPTS].env
            said = TOKENIZER.decode_bytes([i for i in tokens[row, turn, : length[row, turn]] if i != END])
            found = parse_response(said, build.response_grammar(env.actions, prompt))
            actions[row, turn, : found.num_valid] = found.actions
            valid[row, turn], parsed[row, turn] = found.num_valid, found.num_parsed
            good[row, turn] = found.format_ok
        return ParsedResponse(actions=actions, num_valid=valid, num_parsed=parsed, format_ok=good)

    def record(self, *, iteration: int, roll_backs: int = 0) -> RolloutRecord:
        """The record of all episodes of an iteration, from 1, with the inputs of the run.

        As dynamic sampling does, it moves a group to a level with a number beyond those of the run: the first one.
        """
        run, config, group_size = self.run, self.config, self.config.rollout.group_size
        horizon = Horizon(config.algo.horizon, config.prompt.max_turns)
        inputs = first_inputs(run.parts, horizon, iteration - 1, roll_backs)
        group = inputs.ids.group
        ids = dataclasses.replace(inputs.ids, group=jnp.where(group == 0, group.max() + 1, group))
        script = ids.task * SCRIPTS + (ids.group * group_size + ids.member) % SCRIPTS
        play = jax.jit(functools.partial(play_responses, run.parts.train_env, context=FULL))
        given = jax.tree.map(lambda x: np.asarray(x)[script], self.scripts)
        rows = jax.device_get(play(inputs.rollout_key, inputs.rollout, ids, *given))
        sizes = {"group_size": group_size, "episodes": len(group), "horizon": int(inputs.rollout.horizon)}
        tasks, temperature = tuple(task.label for task in config.tasks), config.rollout.temperature
        header = Header(iteration, iteration, roll_backs, tasks, temperature=temperature, **sizes)
        unknown = np.full(rows.response.tokens.shape, np.nan, np.float32)
        return RolloutRecord.of_trajectory(header, rows, types.SimpleNamespace(logprob=unknown, entropy=unknown))


def states_read(record, row, found):
    """What an episode read, and the scene of the state that it read: one pair for each turn, then of the last state."""
    for turn in range(record.num_turns[row]):
        before = [scene for scene in found if scene["action"] is None or scene["turn"] < turn]
        yield text_of(record.observation[row, turn], record.observation_length[row, turn]), before[-1]
    if record.final_observation_length[row]:
        yield text_of(record.final_observation[row], record.final_observation_length[row]), found[-1]


def board(scene, symbols):
    return "\n".join("".join(symbols["+".join(cell)] for cell in row) for row in scene["cells"])
