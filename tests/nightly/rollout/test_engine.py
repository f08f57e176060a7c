"""Trajectories for more batches, settings and devices than the quick tests try."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from same_bits import assert_same
from toy_agent import GROUP_SIZE
from toy_rollouts import GROUPED, KEY

from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.setup.programs import Programs, total_stats


@pytest.mark.parametrize(
    "options",
    [
        {"chunk": 3, "context": "single_turn"},
        {"prefill_rows": 3, "chunk": 3, "slots": 4, "prefill_threshold": 0.5},
        {"prefill_rows": 5, "group_size": GROUP_SIZE},
        {"prefill_rows": 4, "context": "single_turn"},
        {"context": "single_turn", "stop_at_answer": True, "slots": 4, "prefill_threshold": 0.5},
    ],
    ids=str,
)
def test_observations_read_in_parts_and_refills_give_the_same_trajectories(compiled, policy, batch, options):
    ids = toy_agent.rows(batch[0], np.arange(16))
    kept = {name: options[name] for name in ("stop_at_answer", "context") if name in options}
    whole, parts = (
        compiled(toy_agent.engine_config(**chosen))(policy, KEY, ids, toy_agent.settings(16))[0]
        for chosen in (kept, options)
    )
    assert_same(parts, whole)


@pytest.mark.parametrize("devices", [2, 8])
def test_trajectory_does_not_depend_on_devices(policy, batch, devices):
    ids, trajectory, _ = batch
    programs = Programs(make_mesh(devices))
    program = programs.rollout(
        "rollout", toy_agent.MODEL, toy_agent.BATCHED_ENV, toy_agent.engine_config(group_size=GROUP_SIZE)
    )
    spread, stats = program({"policy": policy}, KEY, ids, toy_agent.settings(64))
    assert len(spread.num_turns.sharding.device_set) == devices
    chex.assert_shape(stats.decode_steps, (devices,))
    assert_same(spread, trajectory)
    assert total_stats(stats)["sampled_tokens"] == np.sum(trajectory.response.length)


def test_episodes_of_one_turn_store_nothing_of_their_own(compiled, policy, batch):
    config, settings = toy_agent.engine_config(max_turns=1, group_size=GROUP_SIZE), toy_agent.settings(64)
    found = compiled(config)(policy, KEY, batch[0], settings)[0]
    expected = compiled(GROUPED)(policy, KEY, batch[0], settings.replace(horizon=jnp.int32(1)))[0]
    np.testing.assert_array_equal(found.response.tokens, expected.response.tokens[:, :1])
    np.testing.assert_array_equal(found.num_turns, expected.num_turns)
    np.testing.assert_array_equal(found.truncation, expected.truncation)
