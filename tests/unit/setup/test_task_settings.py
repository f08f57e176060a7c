"""Temperature and turns of tasks in one batch."""

import numpy as np
import pytest
import toy_agent

from agentrl_jax.config import decode
from agentrl_jax.config.one_task import alone
from agentrl_jax.setup import build_inputs

TASKS = [{"env": "A", "groups": 2, "temperature": 0.5}, {"env": "B", "groups": 1, "max_turns": 3}]
HEATING = {"rollout.temperature": {"end": 2.0, "iterations": 4}}


def config(**changes):
    prompt, rollout = {"max_turns": 5}, {"group_size": 2}
    return decode({"tasks": TASKS, "prompt": prompt, "rollout": rollout, "algo": {"schedules": HEATING}} | changes)


def test_episodes_have_the_temperature_of_their_task():
    found = [build_inputs.training_temperature(config(), iteration).tolist() for iteration in (0, 2)]
    assert found == [[0.5] * 4 + [1.0] * 2, [0.5] * 4 + [1.5] * 2]
    settings = build_inputs.rollout_settings(config(), toy_agent.BATCHED_ENV, 6, np.array(found[1]))
    assert settings.temperature.tolist() == found[1]


def test_tasks_have_turns():
    settings = build_inputs.rollout_settings(config(), toy_agent.BATCHED_ENV, 6, 1.0, horizon=4)
    assert settings.turns_of(np.array([1, 0, 1])).tolist() == [3, 4, 3]
    equal = config(tasks=[{"env": name, "groups": 1} for name in "AB"])
    assert build_inputs.rollout_settings(equal, toy_agent.BATCHED_ENV, 6, 1.0).task_turns is None


@pytest.mark.parametrize(("index", "turns"), [(0, 5), (1, 3)])
def test_a_task_by_itself_has_its_turns(index, turns):
    found = alone(config(), index)
    assert (found.prompt.max_turns, found.turns, found.tasks[0].max_turns) == (turns, (turns,), None)
