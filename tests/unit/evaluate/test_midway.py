"""Evaluation boards that training episodes meet after their first turn."""

import json
from types import SimpleNamespace

import numpy as np

from agentrl_jax.evaluate.midway import MidwayCount

BOARDS = np.array([[1, 1], [2, 2], [3, 3], [4, 4], [5, 5], [1, 5]], np.uint32)
STATES = np.array([[[1, 1], [2, 2], [5, 1]], [[3, 3], [1, 5], [4, 4]]], np.uint32)
"""Of two episodes: boards 0 and 2 are their starts, and [5, 1] has one word of one board and one of another."""


def episodes(*num_turns):
    return SimpleNamespace(turn=SimpleNamespace(state_hash=STATES), num_turns=np.array(num_turns))


def count(*num_turns):
    found = MidwayCount([BOARDS[:4], None, BOARDS[4:]], ["first", "bandit", "last"])
    found.add(episodes(*num_turns))
    return found


def test_states_of_turns_that_were_played_after_the_first_are_counted():
    for num_turns, first, last in (((1, 1), 0, 0), ((2, 1), 1, 0), ((3, 2), 1, 1), ((1, 3), 1, 1), ((3, 3), 2, 1)):
        found = count(*num_turns)
        assert found.counts() == {"first": {"seen_midway": first}, "last": {"seen_midway": last}}
        found.add(episodes(1, 1))
        assert found.counts()["first"]["seen_midway"] == first, "what was met stays met"


def test_a_count_goes_on_from_a_checkpoint():
    before, after = count(2, 1), MidwayCount([BOARDS], ["task"])
    saved = json.loads(json.dumps(before.saved()))
    assert saved == {"since": 0, "boards": ["0000000200000002"]}
    after.restore(saved, 7)
    assert after.counts() == {"task": {"seen_midway": 1}}
    after.add(episodes(1, 3))
    assert after.counts() == {"task": {"seen_midway": 3}}


def test_a_checkpoint_of_a_version_without_a_count_begins_one():
    old = count(3, 3)
    old.restore(None, 7)
    assert old.counts() == {task: {"seen_midway": 0, "seen_midway_since": 7} for task in ("first", "last")}
    resumed = count(3, 3)
    resumed.restore(old.saved(), 9)
    assert resumed.since == 7


def test_without_boards_nothing_is_counted():
    found = MidwayCount([None], ["bandit"])
    found.add(episodes(3, 3))
    assert (found.counts(), found.saved()["boards"]) == ({}, [])
