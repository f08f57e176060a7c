"""Host environments on several devices, without refilled slots, and in front of the learner."""

import dataclasses

import chex
import jax
import numpy as np
import pytest
import toy_agent
import xla_settings
from host_stage import EPISODES, SETTINGS, Stage, policy

from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.replay import replay_logprobs


@pytest.fixture(scope="module")
def stage():
    return Stage()


@pytest.fixture(scope="module")
def played(stage):
    return stage.run(stage.program(make_mesh(1)))


@pytest.mark.parametrize("devices", [2, 8])
def test_devices_do_not_matter(stage, played, devices):
    trajectory, calls = stage.run(stage.program(make_mesh(devices)))
    assert calls["reset"] == devices
    assert calls["step"] == played[0].num_turns.reshape(devices, -1).max(axis=1).sum()
    assert_equal(trajectory, played[0])


def test_slots_do_not_matter(stage, played):
    trajectory, calls = stage.run(stage.program(make_mesh(1), slots=4))
    assert calls["made"] == EPISODES
    assert_equal(trajectory, played[0])


def assert_equal(trajectory, other):
    """Equal, except that log-probabilities may differ by the rounding between two programs."""
    np.testing.assert_allclose(trajectory.response.logprob, other.response.logprob, rtol=1e-4, atol=1e-4)
    response = dataclasses.replace(trajectory.response, logprob=other.response.logprob)
    trajectory = dataclasses.replace(trajectory, response=response)
    chex.assert_trees_all_equal(trajectory, other)


def test_a_replay_has_the_bits_of_the_rollout(stage):
    trajectory, _ = stage.run(stage.program(make_mesh(1), options=xla_settings.SAME_BITS))
    replay = jax.jit(
        lambda params, trajectory: replay_logprobs(
            params, toy_agent.MODEL.decoder, stage.config(), trajectory, SETTINGS.temperature, tasks=1
        ),
        compiler_options=xla_settings.SAME_BITS,
    )
    np.testing.assert_array_equal(replay(policy(), trajectory), trajectory.response.logprob)
