"""The toy environments with a place for hints, and hints of all lengths."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import toy_agent

from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.trajectory import Hints

EPISODES = 8


def with_rest(task, rest):
    """The task, with so many tokens of its prefix behind a hint."""
    return dataclasses.replace(task, prompt=task.prompt.replace(hint_at=len(task.prompt.prefix) - rest))


ENV = CompiledEnv(tasks=tuple(with_rest(task, rest) for task, rest in zip(toy_agent.BATCHED_ENV.tasks, (0, 2))))
IDS = toy_agent.mixed_ids(EPISODES, 1)
HINTS = Hints(
    tokens=jnp.asarray(np.random.default_rng(1).integers(1, 400, (EPISODES, 5)), jnp.int32),
    length=jnp.arange(EPISODES, dtype=jnp.int32) % 6,
    at=jnp.asarray(ENV.hint_at)[IDS.task],
    turns=jnp.ones(EPISODES, jnp.int32),
)
