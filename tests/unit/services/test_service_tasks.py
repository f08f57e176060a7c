"""The services of a run: items held out from training, play beside an agent, and metrics."""

import dataclasses
import math
import types

import numpy as np
import pytest
from refusing import refusal

from agentrl_jax.config import load_config
from agentrl_jax.evaluate.baselines import success_intervals
from agentrl_jax.evaluate.service_report import failure_rows, service_metrics
from agentrl_jax.rollout.envs.host_episodes import Failure, Report
from agentrl_jax.services.environment import StepResult
from agentrl_jax.services.environments import maze
from agentrl_jax.services.environments.common import PlannedPolicy, UniformPolicy
from agentrl_jax.services.environments.textcraft.env import GOALS
from agentrl_jax.setup import service_tasks
from agentrl_jax.setup.service_tasks import Services

CONFIG = """
tasks: [{{env: {env}, groups: 8, items: "{items}", held_out: "{held_out}"{more}}}]
prompt: {{style: bare, max_turns: {turns}, max_response_tokens: 10}}
env: {{url: local}}
train: {{validate_every: {every}}}
"""


def made(tmp_path, env, items, held_out, more="", turns=3):
    path = tmp_path / "run.yaml"
    fields = {"env": env, "items": items, "held_out": held_out, "more": more, "turns": turns, "every": int(bool(more))}
    path.write_text(CONFIG.format(**fields))
    return Services(load_config(str(path)), lambda: tmp_path)


@pytest.mark.parametrize(
    ("env", "items", "held_out", "seen"),
    [
        ("textcraft", "0-9", f"{GOALS + 3},{3 * GOALS + 12}", 1),
        ("textcraft", "0-9", "8-11", 2),
        ("textcraft", f"{2 * GOALS}", "0,1", 1),
        ("sciworld", "0-29", "29-40", 1),
        ("maze", "0-9", "9-12", 1),
        ("wordle", "0-9", "5", 1),
    ],
)
def test_a_run_that_trains_on_what_it_holds_out_is_refused(tmp_path, env, items, held_out, seen):
    services = made(tmp_path, env, items, held_out)
    refused = refusal(services.refuse_seen)
    assert (refused.key, len(refused.value)) == ("tasks.0.held_out", seen)
    assert services.seen_items([len(services.tasks[0].held_out)]) == [seen]


def test_other_goals_are_not_refused(tmp_path):
    services = made(tmp_path, "textcraft", f"0-9,{GOALS}-{GOALS + 9}", f"10-19,{GOALS + 10}")
    services.refuse_seen()
    assert services.seen_items([11]) == [0]


def test_validation_items_are_kept_apart_too(tmp_path):
    for items, words in (("5,20", "that are trained on"), (f"20,{GOALS + 11}", "of held_out")):
        services = made(tmp_path, "textcraft", "0-9", "10-19", f", validation: '{items}'")
        refused = refusal(services.refuse_seen)
        assert (refused.key, len(refused.value)) == ("tasks.0.validation", 1)
        assert words in str(refused)


class Patient:
    """Is solved by as many empty actions as its item says, and never after another one."""

    def __init__(self):
        self.left = 0

    def reset(self, item):
        self.left = item
        return StepResult(f"start {item}")

    def step(self, action):
        self.left = 99 if action else self.left - 1
        solved = self.left == 0
        return StepResult("on", float(solved), float(solved), solved)

    def close(self):
        pass


@pytest.mark.parametrize("turns", [1, 4])
def test_null_play_has_the_turns_of_the_agent(monkeypatch, tmp_path, turns):
    service = dataclasses.replace(
        maze.SERVICE,
        make=lambda upstream: Patient(),
        solved=lambda answer: answer.reward == 1,
        oracle=lambda item: PlannedPolicy(()),
        random=lambda item, seed: UniformPolicy(["go"], seed),
    )
    monkeypatch.setattr(service_tasks, "get_service", lambda name: service)
    services = made(tmp_path, "maze", "10-19", "1-6", turns=turns)
    known = services.baselines(0, 6)
    services.close()
    assert known.null.tolist() == [float(item <= turns) for item in range(1, 7)]
    assert known.random.tolist() == [0.0] * 6
    assert set(success_intervals(known)) == {"null", "random", "optimal"}


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
    expected = {"failed_share": 0.5, "failed_turns": 3.0, "retries": 7.0, "restarts": 2.0, "calls": 5.0}
    expected |= {"retried_share": 1 / 6, "retried_success": 0.0, "other_success": 1.0, "retried_turns": 5.0}
    expected |= {"other_turns": 2.5, "wait_share": 0.25}
    expected |= {"lone_share": 1 / 6}  # the first episode, whose only partner failed
    assert found == {f"env/{name}": value for name, value in expected.items()}


def test_without_trouble_there_is_nothing_to_compare():
    found = service_metrics(played([0, 0], [1, 0], [1, 1], [[0], [0]], [0, 1]), Report(), 1.0, 0)
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
