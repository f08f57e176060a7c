import dataclasses
import importlib.util
import itertools
import json
import math

import pytest
from broken_lock import failures

from agentrl_jax.evaluate import environment_checks
from agentrl_jax.evaluate.service_checks import check_service
from agentrl_jax.services.environments.common import PlannedPolicy
from agentrl_jax.services.environments.maze import env as maze
from agentrl_jax.services.environments.wordle import env as wordle

NUMBERS = itertools.count()


class Odd(maze.Maze):
    """`change` gets each answer, and the maze: its number, its actions, and how many episodes were not ended."""

    left, open, actions = 0, False, ()

    def __init__(self, change):
        super().__init__()
        self.change, self.number = change, next(NUMBERS)

    def reset(self, item):
        self.left += self.open
        self.actions, self.open = (), True
        return super().reset(item)

    def step(self, action):
        answer = super().step(action)
        self.actions += (action,)
        self.open = not answer.done
        return dataclasses.replace(answer, **self.change(answer, self))


def odd(change):
    return dataclasses.replace(maze.SERVICE, make=lambda upstream: Odd(change))


def gives_in(to):
    """Wins by actions for which `to` holds."""
    return odd(lambda _, env: {"reward": 1.0, "score": 1.0, "done": True} if to(env.actions) else {})


FAULTS = (
    ("reward_range", odd(lambda answer, _: {"score": 2.0} if answer.reward == 1 else {})),
    ("reward_range", odd(lambda answer, _: {"reward": -5.0} if answer.reward < 1 else {})),
    ("finite_rewards", odd(lambda answer, _: {"score": math.nan} if answer.reward == 1 else {})),
    ("success_terminates", odd(lambda answer, _: {"done": answer.done and answer.reward < 1})),
    ("observation", odd(lambda answer, _: {"observation": ""} if answer.done else {})),
    ("determinism", odd(lambda answer, _: {"reward": -(next(NUMBERS) % 7) / 7} if answer.reward < 1 else {})),
    ("determinism", odd(lambda answer, env: {"observation": f"{answer.observation} {env.number}"})),
    ("reset_clears", odd(lambda answer, env: {"observation": f"{answer.observation} {min(env.left, 1)}"})),
    ("null_floor", gives_in(lambda actions: not actions[-1])),
    ("repeat_last_floor", gives_in(lambda actions: actions[-1] and actions[-20:] == actions[-1:] * 20)),
    ("random_floor", dataclasses.replace(maze.SERVICE, random=lambda item, seed: maze.Oracle())),
    ("reference", dataclasses.replace(maze.SERVICE, oracle=lambda item: PlannedPolicy((), "move up"))),
)


@pytest.mark.parametrize(("name", "service"), FAULTS)
def test_a_fault_is_caught_by_the_check_that_names_it(name, service):
    report = check_service(service)
    assert failures(report) == [name]
    (failed,) = (result for result in report.results if result.name == name)
    assert failed.reason
    assert failed.counterexample["seed"] in range(25)
    json.dumps(report.as_json(), allow_nan=False)


def test_services_pass_and_names_of_actions_that_the_grammar_reads_back():
    for service in (maze.SERVICE, wordle.SERVICE):
        report = check_service(service, items=25)
        assert {report.status, *(result.status for result in report.results)} == {"pass"}
        assert sum(row["levels"] for row in report.difficulty) == 25
    assert failures(environment_checks.check_environment("textcraft", seeds=12)) == []
    assert environment_checks.action_names(("Up", "turn left")).status == "pass"
    found = environment_checks.action_names(("Up", "up"))
    assert (found.status, "differ only in case" in found.reason) == ("fail", True)


def test_a_service_whose_package_is_missing_is_skipped_and_one_that_cannot_be_started_fails(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    report = environment_checks.check_environment("sciworld")
    assert report.status == environment_checks.as_json([report])["status"] == "skipped"
    assert "pip install scienceworld==1.2.3`" in report.results[0].reason
    monkeypatch.setattr(maze, "SERVICE", dataclasses.replace(maze.SERVICE, make=lambda upstream: 1 / 0))
    report = environment_checks.check_environment("maze")
    assert (report.status, "ZeroDivisionError" in report.results[0].reason) == ("fail", True)
