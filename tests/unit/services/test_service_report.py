"""Metrics of the services of a rollout, against counts by hand."""

import math
import types

import numpy as np

from agentrl_jax.evaluate.service_report import failure_rows, service_metrics
from agentrl_jax.rollout.envs.host_episodes import Failure, Report
from agentrl_jax.setup.service_tasks import Services


def played(failed, success, turns, retries, group):
    return types.SimpleNamespace(
        failed=np.array(failed, bool),
        success=np.array(success, bool),
        num_turns=np.array(turns),
        turn=types.SimpleNamespace(info={"retries": np.array(retries, float)}),
        ids=types.SimpleNamespace(group=np.array(group)),
    )


def test_retried_episodes_stand_beside_the_others():
    trajectory = played(
        failed=[0, 1, 0, 0, 1, 1],
        success=[1, 0, 0, 1, 0, 1],
        turns=[3, 1, 5, 2, 4, 4],
        retries=[[0, 0], [1, 0], [2, 1], [0, 0], [0, 0], [3, 0]],
        group=[4, 4, 7, 7, 9, 9],
    )
    found = service_metrics(trajectory, Report(calls=5, seconds=3.0), 12.0, 2)
    assert found == {
        "env/failed_share": 0.5,
        "env/failed_turns": 3.0,
        "env/retries": 7.0,
        "env/retried_share": 1 / 6,
        "env/retried_success": 0.0,
        "env/other_success": 1.0,
        "env/retried_turns": 5.0,
        "env/other_turns": 2.5,
        "env/lone_share": 1 / 6,  # the first episode, whose partner failed
        "env/restarts": 2.0,
        "env/calls": 5.0,
        "env/wait_share": 0.25,
    }


def test_without_trouble_there_is_nothing_to_compare():
    trajectory = played([0, 0], [1, 0], [1, 1], [[0], [0]], [0, 1])
    found = service_metrics(trajectory, Report(), 1.0, 0)
    assert found["env/failed_share"] == found["env/retries"] == found["env/lone_share"] == 0  # groups of one are whole
    assert math.isnan(found["env/retried_success"])
    assert math.isnan(found["env/failed_turns"])


def test_restarts_are_those_since_the_last_look():
    processes = [types.SimpleNamespace(restarts=1), types.SimpleNamespace(restarts=2)]
    services = object.__new__(Services)
    services._processes, services._restarts = processes, 0
    assert services.take_restarts() == 3
    processes[1].restarts = 4
    assert [services.take_restarts(), services.take_restarts()] == [2, 0]


def test_dropped_episodes_are_named():
    rows = failure_rows(7, [Failure("maze", 1, 2, "step", "Lost: gone")])
    assert rows == [{"step": 7, "task": "maze", "group": 1, "member": 2, "what": "step", "error": "Lost: gone"}]
