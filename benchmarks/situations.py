"""Samples states of random play, with the prompt before them and an optimal response, in tokens."""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.config import PromptConfig
from agentrl_jax.rollout.envs.batched_env import Task
from agentrl_jax.text.pieces import expand
from agentrl_jax.text.prompt import message, response
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax.bandit import Bandit
from envs_jax.environment import TextEnvironment
from envs_jax.frozen_lake import FrozenLake, oracle
from envs_jax.frozen_lake.text import FROZEN, START
from envs_jax.sokoban.oracle import solve


class Situation(NamedTuple):
    """A state with a prompt before it and an optimal response, in tokens.

    Attributes:
        head: tokens from the start of the prompt to the observation.
        observation: the observation, encoded piece by piece.
        whole: the observation, encoded as one text.
        rest: tokens from the observation to the response.
        response: the response, the same after every prompt.
    """

    head: list[int]
    observation: list[int]
    whole: list[int]
    rest: list[int]
    response: list[int]


def canonical(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
    """Encodes the text of tokens again, with the tokenizer's rule for whole texts; special tokens stay in place."""
    written: list[int] = []
    for special, run in itertools.groupby(tokens, lambda token: token in tokenizer.special_ids):
        ids = list(run)
        written += ids if special else tokenizer.encode(tokenizer.decode_bytes(ids).decode())
    return written


def optimal_plan(env: TextEnvironment, state: Any) -> np.ndarray | None:
    """Action ids of a shortest plan from a state (for a bandit, the high arm that is shown); None if there is none."""
    if isinstance(env, Bandit):
        shown = np.asarray(state.shown)
        return shown[shown % 2 == 1]
    if isinstance(env, FrozenLake):
        level = np.asarray(state.level)
        level = np.where(level == START, FROZEN, level)
        return oracle.plan(np.where(state.player, START, level))
    return solve(np.asarray(env.get_obs(state)))


def situations(task: Task, tokenizer: Tokenizer, key: jax.Array, count: int, told: PromptConfig) -> list[Situation]:
    """Returns at most `count` different situations of random play, one per level; states without a plan are skipped.

    The observation is the first message after the prefix, in the turn that follows its random actions.
    """
    env, params, prompt = task.env, task.env_params, task.prompt
    per_turn, budget = told.max_actions_per_turn, told.max_actions

    def play(key):
        level, number, noise = jax.random.split(key, 3)
        steps = jax.random.randint(number, (), 0, budget)

        def step(state, inputs):
            index, key = inputs
            action = jax.random.randint(key, (), 0, env.num_actions)
            moved = env.step_env(jax.random.fold_in(key, 1), state, action, params)[1]
            return jax.tree.map(lambda a, b: jnp.where(index < steps, a, b), moved, state), None

        start = env.reset_env(level, params)[1]
        state, _ = jax.lax.scan(step, start, (jnp.arange(budget), jax.random.split(noise, budget)))
        described = env.describe(state, params)
        fields = {
            "turn": jnp.minimum(steps // per_turn, told.max_turns - 1),
            "actions_left": budget - steps,
            "reward": jnp.float32(0),
            "first": jnp.bool_(True),
            "response_ended": jnp.bool_(False),
        }
        before = [part.kind for part in prompt.message_parts].index("observation")
        opening = prompt.replace(message_parts=prompt.message_parts[:before], message_ids=prompt.message_ids[:before])
        texts = (
            message(opening, described, **fields),
            expand(prompt.table, described, prompt.max_message_tokens),
            message(prompt, described, **fields),
        )
        return state, env.is_done(state, params), texts

    states, done, texts = jax.device_get(jax.jit(jax.vmap(play))(jax.random.split(key, 4 * count)))
    answer = jax.jit(lambda actions, number: response(prompt, actions, number))
    found: dict[tuple[int, ...], Situation] = {}
    for row in np.flatnonzero(~done):
        plan = optimal_plan(env, jax.tree.map(lambda x, row=row: x[row], states))
        if plan is None or len(plan) == 0:
            continue
        opening, observation, whole = (tokens[row, : length[row]].tolist() for tokens, length in texts)
        actions = np.zeros(per_turn, np.int32)
        actions[: len(plan)] = plan[:per_turn]
        tokens, length = answer(actions, min(len(plan), per_turn))
        found.setdefault(
            tuple(whole),
            Situation(
                head=prompt.prefix.tolist() + opening,
                observation=observation,
                whole=canonical(tokenizer, observation),
                rest=whole[len(opening) + len(observation) :],
                response=np.asarray(tokens)[: int(length)].tolist(),
            ),
        )
        if len(found) == count:
            break
    return list(found.values())
