"""The engine with observations read in parts, with groups played again, and with environments of the host."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from host_stage import Stage
from toy_rollouts import GROUPED, KEY, assert_same

from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.contexts import SINGLE_TURN
from agentrl_jax.rollout.resampling import Resampling
from agentrl_jax.setup.programs import Programs, played_metrics, total_stats


@pytest.mark.parametrize(
    "options",
    [
        {"chunk": 3, "context": SINGLE_TURN},
        {"prefill_rows": 3, "chunk": 3, "slots": 4, "prefill_threshold": 0.5},
        {"prefill_rows": 5, "group_size": toy_agent.GROUP_SIZE},
        {"prefill_rows": 3, "group_size": toy_agent.GROUP_SIZE, "slots": 8},
        {"prefill_threshold": 0.3, "chunk": 3, "group_size": toy_agent.GROUP_SIZE, "slots": 8},
        {"prefill_rows": 4, "context": SINGLE_TURN},
        {"context": SINGLE_TURN, "stop_at_answer": True, "slots": 4, "prefill_threshold": 0.5},
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


def test_episodes_of_one_turn_store_nothing_of_their_own(compiled, policy, batch):
    config, settings = toy_agent.engine_config(max_turns=1, group_size=toy_agent.GROUP_SIZE), toy_agent.settings(64)
    found = compiled(config)(policy, KEY, batch[0], settings)[0]
    expected = compiled(GROUPED)(policy, KEY, batch[0], settings.replace(horizon=jnp.int32(1)))[0]
    np.testing.assert_array_equal(found.response.tokens, expected.response.tokens[:, :1])
    np.testing.assert_array_equal(found.num_turns, expected.num_turns)
    np.testing.assert_array_equal(found.truncation, expected.truncation)


def test_devices_do_not_matter_to_environments_of_the_host():
    stage = Stage()
    played = stage.run(stage.program(make_mesh(1)))[0]
    for devices in (2, 8):
        trajectory, calls = stage.run(stage.program(make_mesh(devices)))
        assert calls["reset"] == devices
        assert calls["step"] == played.num_turns.reshape(devices, -1).max(axis=1).sum()
        assert_same(trajectory, played)


NAMES = ("short", "long")
# One turn at a low temperature, so that members of a group often act the same.
SETTINGS = dataclasses.replace(
    toy_agent.settings(64), horizon=jnp.int32(1), temperature=jnp.full(64, 0.3), format_penalty=jnp.float32(-0.1)
)


def program(devices):
    programs = Programs(make_mesh(devices))
    return programs.rollout(
        "rollout", toy_agent.MODEL, toy_agent.BATCHED_ENV, GROUPED, resampling=Resampling(3), task_names=NAMES
    )


def spread(trajectory, paid=0.0):
    returns = np.asarray(trajectory.returns - 0.1 * jnp.sum(trajectory.turn.format_error, axis=1), np.float64)
    return np.ptp((returns - paid).reshape(-1, toy_agent.GROUP_SIZE), axis=1) > 1e-6


def test_an_overlong_penalty_makes_a_spread(policy, batch):
    ids, play = batch[0], program(1)
    _, stats = play({"policy": policy}, KEY, ids, SETTINGS)
    long = SETTINGS.replace(overlong_buffer=jnp.float32(1.0), overlong_penalty=jnp.float32(0.5))
    trajectory, punished = play({"policy": policy}, KEY, ids, long)
    length = np.asarray(trajectory.response.length, np.float64)
    paid = np.where(trajectory.turn_mask, 0.5 * length / toy_agent.MAX_RESPONSE_TOKENS, 0.0).sum(axis=1)
    varied = spread(trajectory, paid)
    assert varied.sum() > spread(trajectory).sum()
    before, found = played_metrics(stats), played_metrics(punished)
    assert found["rollout/zero_std_share"] < before["rollout/zero_std_share"]
    assert int(jnp.sum(punished.rounds)) < int(jnp.sum(stats.rounds)) or varied.all()
    assert found["train/return"] < found["train/raw_return"] - 0.01


def test_metrics_speak_of_all_that_every_device_played(policy, batch):
    _, stats = program(2)({"policy": policy}, KEY, batch[0], SETTINGS)
    counters, found = total_stats(stats), played_metrics(stats)
    assert counters["episodes"] == 32 * int(jnp.sum(stats.rounds)) > 64
    assert found["train/success"] == pytest.approx(counters["solved"] / counters["episodes"], abs=1e-6)
    assert found["train/short/episodes"] + found["train/long/episodes"] == counters["episodes"]
