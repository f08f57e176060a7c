"""Fixtures: compiled rollouts of the toy agent, each made once because it costs seconds to compile."""

import functools

import jax
import pytest
import toy_agent
import xla_settings

from agentrl_jax.models import actor_critic
from agentrl_jax.rollout import engine
from agentrl_jax.rollout.packing import pack_trajectories

KEY = jax.random.key(7)
GROUPED = toy_agent.engine_config(group_size=toy_agent.GROUP_SIZE)
"""The configuration of `batch`."""


@pytest.fixture(scope="session")
def policy():
    return toy_agent.talkative_params(5)["policy"]


@functools.cache
def _program(config):
    def play(params, *arguments):
        return engine.rollout(params, toy_agent.MODEL.decoder, toy_agent.BATCHED_ENV, config, *arguments)

    # Only this configuration is replayed with the same bits, which takes longer to compile.
    return jax.jit(play, compiler_options=xla_settings.SAME_BITS if config == GROUPED else None)


@pytest.fixture(scope="session")
def compiled():
    """Function from an `EngineConfig` to the jitted rollout (params, key, ids, settings) of the toy environments."""
    return _program


@pytest.fixture(scope="session")
def batch(compiled, policy):
    ids = toy_agent.mixed_ids(16, toy_agent.GROUP_SIZE)
    return ids, *compiled(GROUPED)(policy, KEY, ids, toy_agent.settings(64))


@functools.partial(jax.jit, static_argnums=2)
def forward_logprobs(policy, trajectory, context, temperature):
    rows = pack_trajectories(trajectory, context)
    model = toy_agent.MODEL
    return rows, actor_critic.logprobs({"policy": policy}, model, rows.tokens, rows.position, temperature[rows.episode])
