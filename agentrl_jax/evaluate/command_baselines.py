"""Random, null and optimal play in environments of commands, by the scripted policies of the registry."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from agentrl_jax.rollout.envs.batched_env import Task, start_state
from agentrl_jax.setup.jit_once import jit_once
from envs_jax import registry
from envs_jax.budget import Baselines
from envs_jax.scripted_commands import command_of
from envs_jax.splits import Split

AT_ONCE = 256
"""Episodes that one program plays, because the state of each may be a whole corpus."""


def command_baselines(task: Task, keys: Key[Array, " N"], split: Split, turns: int) -> Baselines | None:
    """One episode of each policy on each of N levels, of at most `turns` commands; None without these policies.

    The levels are those that a rollout draws from `keys`. An episode of the oracle is an outcome, no bound.
    """
    policies = registry.spec(task.name).policies
    if not {"random", "null", "oracle"} <= policies.keys():
        return None
    played = {name: played_by(task, name, keys, split, turns) for name in ("random", "null", "oracle")}
    return Baselines(
        played["random"][0],
        played["oracle"][0],
        "scripted",
        played["null"][0],
        {"random": played["random"][1], "optimal": played["oracle"][1], "null": played["null"][1]},
    )


def played_by(
    task: Task, policy: str, keys: Key[Array, " N"], split: Split, turns: int
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Success and turns of one episode of a scripted policy on each level."""
    play = functools.partial(_episode, task, turns)
    program = jit_once(jax.vmap(play, in_axes=(0, None, None, None)), ("play_by", task.env, turns))
    number = jnp.int32(list(registry.spec(task.name).policies).index(policy))
    size = min(AT_ONCE, len(keys))
    found = []
    for first in range(0, len(keys), AT_ONCE):
        rows = np.minimum(np.arange(first, first + size), len(keys) - 1)
        found.append(jax.device_get(program(keys[rows], task.env_params, jnp.int32(split), number)))
    success, used = (np.concatenate(column)[: len(keys)].astype(np.float64) for column in zip(*found))
    return success, used


def _episode(
    task: Task, turns: int, key: Key[Array, ""], params: Any, split: Int[Array, ""], policy: Int[Array, ""]
) -> tuple[Array, Array]:
    env, spec = task.env, registry.spec(task.name)
    start, _ = start_state(env, key, jnp.int32(-1), jnp.bool_(True), params=params, split=split)

    def turn(state: Any, number: jax.Array) -> tuple[Any, jax.Array]:
        own = jax.random.fold_in(key, number)
        command = command_of(env, spec.scripts, spec.policies, policy, own, state, params)
        return env.step_env(own, state, command, params)[1], ~env.is_done(state, params)

    last, played = jax.lax.scan(turn, start, jnp.arange(turns))
    return env.success(last, params), jnp.sum(played)
