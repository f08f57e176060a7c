from types import SimpleNamespace
from typing import NamedTuple

import pytest

from agentrl_jax.train.run import Run


class State(NamedTuple):
    stage: int = 0
    step: int = 0


class Counting:
    """A stage of `rows` steps, which says what it is asked to do; in row `bad`, counted from 1, it goes wrong once."""

    def __init__(self, name, first_row, rows, asked, bad=0):
        self.name, self.first_row, self.rows, self.asked, self.bad = name, first_row, rows, asked, bad

    def begin(self, state):
        self.asked.append(f"begin {self.name}")
        return State(state.stage + 1)

    def resume(self, state):
        self.asked.append(f"resume {self.name}")

    def row(self, state):
        return self.first_row + state.step

    def ended(self, state):
        return state.step >= self.rows

    def advance(self, state):
        self.asked.append(f"{self.name}{state.step + 1}")
        return state._replace(step=state.step + 1)

    def recovered(self, state):
        if state.step == self.bad > 0:
            self.bad = 0
            self.asked.append("back")
            return state._replace(step=state.step - 2)
        return state


def walked(state, row=None, bad=0):
    run, asked, stopped_at = object.__new__(Run), [], []
    run.stages = (Counting("a", 0, 2, asked), Counting("b", 2, 3, asked, bad))
    run.progress = SimpleNamespace(stop_if_asked=lambda row, state: stopped_at.append(row))
    return run._walk(state, row), asked, stopped_at


@pytest.mark.parametrize(
    ("start", "row", "end", "asked"),
    [
        (State(), None, State(2, 3), "begin a, a1, a2, begin b, b1, b2, b3"),
        (State(1, 1), None, State(2, 3), "resume a, a2, begin b, b1, b2, b3"),
        (State(1, 2), None, State(2, 3), "resume a, begin b, b1, b2, b3"),
        (State(2, 3), None, State(2, 3), "resume b"),
        (State(), 1, State(1, 1), "begin a, a1"),
        # The stage of the next row has begun.
        (State(), 2, State(2, 0), "begin a, a1, a2, begin b"),
        (State(2, 1), 4, State(2, 2), "resume b, b2"),
        (State(2, 1), 5, State(2, 3), "resume b, b2, b3"),
    ],
)
def test_stages_follow_each_other_from_any_state_to_any_row(start, row, end, asked):
    state, found, stopped_at = walked(start, row)
    assert (state, found) == (end, asked.split(", "))
    assert stopped_at == [int(step[1:]) + 2 * (step[0] == "b") for step in found if " " not in step]


def test_a_stage_goes_back_in_a_run_and_not_on_the_way_to_a_row():
    assert walked(State(2, 0), bad=2)[1] == ["resume b", "b1", "b2", "back", "b1", "b2", "b3"]
    assert walked(State(2, 2), bad=2)[1] == ["resume b", "back", "b1", "b2", "b3"]
    assert walked(State(2, 0), 4, bad=2)[1] == ["resume b", "b1", "b2"]
