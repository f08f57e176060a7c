"""Compiled rollouts of the toy agent, each made once because it costs seconds to compile; and comparisons of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent

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

    return jax.jit(play)


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


def differing(a, b) -> list[str]:
    raw = [
        jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, t)
        for t in (a, b)
    ]
    same = jax.tree.map(lambda x, y: np.array_equal(np.asarray(x), np.asarray(y)), *raw)
    return [jax.tree_util.keystr(path) for path, equal in jax.tree_util.tree_leaves_with_path(same) if not equal]


def assert_same(a, b):
    """Trajectories of two programs are equal bit for bit, except that log-probabilities may be rounded differently."""
    assert [leaf for leaf in differing(a, b) if not leaf.endswith("logprob")] == []
    np.testing.assert_allclose(a.response.logprob, b.response.logprob, atol=1e-3)
