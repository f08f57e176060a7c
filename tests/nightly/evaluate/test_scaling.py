"""Attempts at an item of a service."""

import itertools

import refusing
from evaluating import result_of

from agentrl_jax.evaluate.eval_set import EvalSet
from agentrl_jax.services.environments.maze.env import Maze


def test_a_service_begins_again(served, monkeypatch, tmp_path):
    played, play = [], EvalSet.play

    def noted(eval_set, params, *args):
        played.append((eval_set, params, play(eval_set, params, *args)))
        return played[-1][-1]

    monkeypatch.setattr(EvalSet, "play", noted)
    found = result_of("scaling", served, "--attempts", "1,3", "--out", tmp_path)
    once, thrice = found["axes"]["attempts"]
    assert (once["retry_turns"]["mean"], thrice["retry_turns"]["mean"]) == (2, 6)
    # A line of several plays would need more than the single ones that are known.
    assert not {"random", "optimal"} & thrice.keys()
    eval_set, params, greedy = played[-1]
    assert greedy.turn.info["attempt"].tolist() == [[0, 0, 1, 1, 2, 2]] * 2
    starts, reset = itertools.count(), Maze.reset
    monkeypatch.setattr(Maze, "reset", lambda self, item: reset(self, next(starts) % 20))
    assert "the environment began again with 'The goal" in str(refusing.refusal(play, eval_set, params, 2, 0.0))
