"""Host environments on several devices, and their replay."""

import jax
import numpy as np
import pytest
import toy_agent
import xla_settings
from host_stage import SETTINGS, Stage, policy
from same_bits import assert_same

from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.replay import replay_logprobs


@pytest.fixture(scope="module")
def stage():
    return Stage()


@pytest.fixture(scope="module")
def played(stage):
    return stage.run(stage.program(make_mesh(1), options=xla_settings.SAME_BITS))[0]


@pytest.mark.parametrize("devices", [2, 8])
def test_devices_do_not_matter(stage, played, devices):
    trajectory, calls = stage.run(stage.program(make_mesh(devices)))
    assert calls["reset"] == devices
    assert calls["step"] == played.num_turns.reshape(devices, -1).max(axis=1).sum()
    assert_same(trajectory, played)


def test_a_replay_has_the_bits_of_the_rollout(stage, played):
    def replay(params, *record):
        return replay_logprobs(params, toy_agent.MODEL.decoder, stage.config(), *record, tasks=1)

    program = jax.jit(replay, compiler_options=xla_settings.SAME_BITS)
    np.testing.assert_array_equal(program(policy(), played, SETTINGS.temperature), played.response.logprob)
