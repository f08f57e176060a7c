"""Plays plans in the environments of a rollout, as trajectories to imitate.

Shapes: `E` episodes, `T` turns, `A` actions of one turn.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from agentrl_jax.config import PromptConfig
from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.contexts import Context
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.level_splits import LevelSplits
from agentrl_jax.rollout.trajectory import RolloutSettings, Trajectory
from agentrl_jax.setup import build_inputs
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.setup.play_responses import demonstrate
from envs_jax.splits import Split


class Plans(NamedTuple):
    """Action ids of E episodes, their tasks, and their rows in the task's level pack; -1 where the key decides."""

    actions: list[np.ndarray]
    turns_before: Int[np.ndarray, " E"]
    """Turns before the plan, which are played but not imitated."""
    task: Int[np.ndarray, " E"]
    level: Int[np.ndarray, " E"]
    env_params: tuple[Any, ...]


def split_plans(plans: list[np.ndarray], turns: int, actions_per_turn: int) -> Int[np.ndarray, "E T A"]:
    """Cuts plans into turns of actions, padded with -1; raises ValueError if a plan does not fit."""
    table = np.full((len(plans), turns * actions_per_turn), -1, np.int32)
    for row, plan in zip(table, plans):
        if len(plan) > len(row):
            raise BadValue(
                f"a plan of {len(plan)} actions does not fit in {turns} turns of {actions_per_turn}",
                key="plan",
                value=len(plan),
            )
        row[: len(plan)] = plan
    return table.reshape(len(plans), turns, actions_per_turn)


class PlayPlans:
    """Plays plans on training levels in the canonical response format."""

    def __init__(self, batched_env: CompiledEnv, splits: LevelSplits, prompt: PromptConfig, context: Context):
        """Compiles nothing yet; plans of one number of episodes share a program."""
        self._prompt, self._per_turn, self._split = prompt, batched_env.max_actions_per_turn, splits.of(Split.TRAIN)
        play = functools.partial(demonstrate, batched_env, prompt.max_response_tokens, context=context)
        self._play = jit_once(play, ("demonstrate", play))

    def __call__(self, key: jax.Array, plans: Plans) -> tuple[Trajectory, Bool[Array, "E T"]]:
        """Returns the trajectories, and which turns are imitated. Raises ValueError if a plan does not fit."""
        actions = split_plans(plans.actions, self._prompt.max_turns, self._per_turn)
        rows = np.arange(len(actions))
        ids = build_inputs.episode_ids(group=rows, member=np.zeros_like(rows), task=plans.task, level=plans.level)
        settings = RolloutSettings(
            temperature=jnp.ones(len(actions), jnp.float32),
            horizon=jnp.int32(self._prompt.max_turns),
            max_actions=jnp.int32(self._prompt.max_actions),
            env_params=plans.env_params,
            split=self._split,
        )
        imitated = jnp.arange(self._prompt.max_turns) >= plans.turns_before[:, None]
        return self._play(key, settings, ids, jnp.asarray(actions)), imitated
