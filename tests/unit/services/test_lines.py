"""Null, random and scripted play beside an agent: on its items, with its number of turns."""

import dataclasses

import pytest

from agentrl_jax.config import load_config
from agentrl_jax.evaluate.baselines import success_intervals
from agentrl_jax.services.environment import StepResult
from agentrl_jax.services.environments.common import PlannedPolicy, UniformPolicy
from agentrl_jax.services.environments.maze import SERVICE
from agentrl_jax.setup import service_tasks
from agentrl_jax.setup.service_tasks import Services

CONFIG = """
tasks: [{{env: maze, groups: 8, items: 10-19, held_out: 1-6}}]
prompt: {{style: bare, max_turns: {turns}, max_response_tokens: 10}}
env: {{url: local}}
train: {{validate_every: 0}}
"""


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
        SERVICE,
        make=lambda upstream: Patient(),
        solved=lambda answer: answer.reward == 1,
        oracle=lambda item: PlannedPolicy(()),
        random=lambda item, seed: UniformPolicy(["go"], seed),
    )
    monkeypatch.setattr(service_tasks, "get_service", lambda name: service)
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG.format(turns=turns))
    services = Services(load_config(str(path)), lambda: tmp_path)
    known = services.baselines(0, 6)
    services.close()
    assert known.null.tolist() == [float(item <= turns) for item in range(1, 7)]
    assert known.random.tolist() == [0.0] * 6
    assert set(success_intervals(known)) == {"null", "random", "optimal"}
