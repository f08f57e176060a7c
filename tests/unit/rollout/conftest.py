"""Compiled rollouts, shared by all tests of this folder because each costs seconds to compile."""

import functools

import jax
import pytest
import toy_agent
import xla_settings

from agentrl_jax.rollout import engine


@pytest.fixture(scope="session")
def policy():
    return toy_agent.talkative_params(5)["policy"]


@pytest.fixture(scope="session")
def compiled():
    """Function from an `EngineConfig` to the jitted rollout (params, key, ids, settings) of the toy environments."""

    @functools.cache
    def build(config, whole_state=False, same_bits=False):
        def play(params, key, ids, settings):
            arguments = (params, toy_agent.MODEL.decoder, toy_agent.BATCHED_ENV, config, key, ids, settings)
            return engine.Engine(*arguments).run() if whole_state else engine.rollout(*arguments)

        return jax.jit(play, compiler_options=xla_settings.SAME_BITS if same_bits else None)

    return build


@pytest.fixture(scope="session")
def batch(compiled, policy):
    """64 episodes, 16 groups of 4 with a shared first prefill: (ids, trajectory, stats)."""
    ids = toy_agent.mixed_ids(16, toy_agent.GROUP_SIZE)
    program = compiled(toy_agent.engine_config(group_size=toy_agent.GROUP_SIZE))
    return ids, *program(policy, jax.random.key(7), ids, toy_agent.settings(64))
