"""Resampled groups on two devices."""

import dataclasses

import jax.numpy as jnp
import pytest
import toy_agent
from toy_rollouts import GROUPED, KEY

from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.setup.programs import Programs, played_metrics, total_stats


def test_metrics_speak_of_all_that_every_device_played(policy, batch):
    settings = dataclasses.replace(
        toy_agent.settings(64), horizon=jnp.int32(1), temperature=jnp.full(64, 0.3), format_penalty=jnp.float32(-0.1)
    )
    programs = Programs(make_mesh(2))
    play = programs.rollout(
        "rollout", toy_agent.MODEL, toy_agent.BATCHED_ENV, GROUPED, rounds=3, task_names=("short", "long")
    )
    _, stats = play({"policy": policy}, KEY, batch[0], settings)
    counters, found = total_stats(stats), played_metrics(stats)
    assert counters["rounds"] > 2
    assert found["train/success"] == pytest.approx(counters["solved"] / counters["episodes"], abs=1e-6)
    assert found["train/short/episodes"] + found["train/long/episodes"] == counters["episodes"]
