"""Every check of a service catches the fault that it names and no other; the services pass."""

import dataclasses
import functools
import importlib.util
import itertools
import json

import pytest

from agentrl_jax.evaluate import environment_checks
from agentrl_jax.evaluate.service_checks import check_service
from agentrl_jax.services.environments import maze, wordle
from agentrl_jax.services.environments.common import PlannedPolicy


class Changed(maze.Maze):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def step(self, action):
        return self.change(super().step(action))


def with_text(answer, text):
    return dataclasses.replace(answer, observation=f"{answer.observation} {text}")


class Remembers(maze.Maze):
    """Counts the episodes that were left before their end."""

    left, open = 0, False

    def reset(self, item):
        self.left += self.open
        self.open = True
        return super().reset(item)

    def step(self, action):
        answer = super().step(action)
        self.open = not answer.done
        return with_text(answer, min(self.left, 1))


class GivesIn(maze.Maze):
    """Gives in to an action that satisfies `to`, which gets all actions."""

    actions: tuple[str, ...] = ()

    def __init__(self, to):
        super().__init__()
        self.to = to

    def reset(self, item):
        self.actions = ()
        return super().reset(item)

    def step(self, action):
        answer = super().step(action)
        self.actions += (action,)
        return dataclasses.replace(answer, reward=1.0, score=1.0, done=True) if self.to(self.actions) else answer


def broken(make, **changes):
    return dataclasses.replace(maze.SERVICE, make=lambda upstream: make(), **changes)


def changed(which, **fields):
    """The maze, of whose answers some have other fields; what is given as a function is asked each time."""

    def change(answer):
        given = {name: value() if callable(value) else value for name, value in fields.items()}
        return dataclasses.replace(answer, **given) if which(answer) else answer

    return broken(lambda: Changed(change))


def lost(answer):
    return answer.reward < 1


def won(answer):
    return answer.reward == 1


CHANCE, MADE = itertools.count(), itertools.count()
FAULTS = (
    ("reward_range", changed(won, score=2.0)),
    ("reward_range", changed(lost, reward=-5.0)),
    ("finite_rewards", changed(won, score=float("nan"))),
    ("success_terminates", changed(won, done=False)),
    ("observation", changed(lambda answer: answer.done, observation="")),
    ("determinism", changed(lost, reward=lambda: -(next(CHANCE) % 7) / 7)),
    ("determinism", broken(lambda: Changed(functools.partial(with_text, text=next(MADE))))),
    ("reset_clears", broken(Remembers)),
    ("null_floor", broken(lambda: GivesIn(lambda actions: not actions[-1]))),
    ("repeat_last_floor", broken(lambda: GivesIn(lambda actions: actions[-1] and actions[-20:] == actions[-1:] * 20))),
    ("random_floor", broken(maze.Maze, random=lambda item, seed: maze.Oracle())),
    ("reference", broken(maze.Maze, oracle=lambda item: PlannedPolicy((), "move up"))),
)


def failures(report):
    return [result.name for result in report.results if result.status == "fail"]


@pytest.mark.parametrize(("name", "service"), FAULTS)
def test_a_fault_is_caught_by_the_check_that_names_it(name, service):
    report = check_service(service)
    assert failures(report) == [name]
    (failed,) = (result for result in report.results if result.name == name)
    assert failed.reason
    assert failed.counterexample["seed"] in range(25)
    json.dumps(report.as_json(), allow_nan=False)


def test_services_pass():
    for service in (maze.SERVICE, wordle.SERVICE):
        report = check_service(service, items=25)
        assert {report.status, *(result.status for result in report.results)} == {"pass"}
        assert sum(row["levels"] for row in report.difficulty) == 25
    assert failures(environment_checks.check_environment("textcraft", seeds=12)) == []


def test_a_service_whose_package_is_missing_is_skipped_with_the_reason(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    report = environment_checks.check_environment("sciworld")
    assert report.status == environment_checks.as_json([report])["status"] == "skipped"
    assert "pip install scienceworld==1.2.3`" in report.results[0].reason


@pytest.mark.parametrize("error", [ValueError("no such item"), RuntimeError("the simulator has ended")])
def test_a_service_that_cannot_be_started_fails(error, monkeypatch):
    def make(upstream):
        raise error

    monkeypatch.setattr(maze, "SERVICE", dataclasses.replace(maze.SERVICE, make=make))
    report = environment_checks.check_environment("maze")
    assert (report.status, str(error) in report.results[0].reason) == ("fail", True)


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        (("Up", "Down", "turn left"), ""),
        (("Up", "up"), "differ only in case"),
        (("Up || Down",), "separator"),
        ((" Up",), "spaces"),
    ],
)
def test_action_names_are_read_back_by_the_grammar(actions, reason):
    found = environment_checks.action_names(actions)
    assert found.status == ("fail" if reason else "pass")
    assert reason in found.reason
