"""Retries of a run: what is summed up by attempt, one attempt is the plain evaluation, and what is refused."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from evaluating import result_of
from refusing import refusal
from tokenizers import Tokenizer as Backend
from tokenizers.normalizers import Lowercase

from agentrl_jax.evaluate import retry
from agentrl_jax.evaluate.eval_set import EvalSet
from agentrl_jax.rollout.trajectory import TRUNCATIONS
from agentrl_jax.services.environments.maze import STARTS, Maze, describe
from agentrl_jax.text import tokenizer as tokenizers
from agentrl_jax.text.styles import FEEDBACK


def made_episodes():
    """Four levels with up to three attempts in five turns: solved at once, then at the second, and twice not."""
    number = np.array([[0, 9, 9, 9, 9], [0, 0, 1, 9, 9], [0, 1, 2, 2, 9], [0, 0, 1, 1, 9]])
    solved = np.zeros((4, 5), bool)
    solved[0, 0] = solved[1, 2] = True
    return SimpleNamespace(
        turn=SimpleNamespace(info={"attempt": np.where(number == 9, 0, number)}, success=solved),
        turn_mask=number != 9,
        response=SimpleNamespace(length=np.where(number == 9, 0, [1, 10, 100, 1000, 10000])),
        truncation=np.array([0, 0, 1 + TRUNCATIONS.index("turns"), 1 + TRUNCATIONS.index("context")]),
    )


def test_sums_are_those_up_to_each_attempt():
    found = retry.within(made_episodes(), 3)
    assert found.success.tolist() == [[1, 1, 1], [0, 1, 1], [0, 0, 0], [0, 0, 0]]
    assert found.turns.tolist() == [[1, 1, 1], [2, 3, 3], [1, 2, 4], [2, 4, 4]]
    assert found.tokens.tolist() == [[1, 1, 1], [11, 111, 111], [1, 11, 1111], [11, 1111, 1111]]
    assert found.context_full == 1


def test_rates_stand_beside_samples_of_the_same_levels():
    attempts = retry.within(made_episodes(), 3)
    samples = np.array([[1, 1, 0], [0, 0, 1], [0, 0, 0], [1, 0, 1]], bool)
    control = SimpleNamespace(success=samples, tokens=np.full((4, 3), 7))
    found = retry.rates(attempts, attempts._replace(success=~attempts.success), control, (1, 3))
    assert list(found) == ["1", "3"]
    for name, means in (
        ("retry", [0.25, 0.5]),
        ("retry_greedy", [0.75, 0.5]),
        ("pass_at", [5 / 12, 0.75]),
        ("difference", [1 / 4 - 5 / 12, -0.25]),
        ("retry_turns", [1.5, 3.0]),
        ("retry_tokens", [6.0, 583.5]),
        # By hand: until the first success in random order, 4/3, 2, 3 and 4/3 of three samples are needed.
        ("pass_at_tokens", [7.0, 7 * (4 / 3 + 2 + 3 + 4 / 3) / 4]),
    ):
        assert [found[k][name]["mean"] for k in found] == pytest.approx(means)
    intervals = [interval for point in found.values() for interval in point.values()]
    assert {(interval["n"], interval.get("clusters")) for interval in intervals} == {(4, None)}
    clustered = retry.rates(attempts, attempts, control, (1, 3), list("aabb"))
    assert {interval["clusters"] for point in clustered.values() for interval in point.values()} == {2}


def test_costs_of_one_are_no_outcomes():
    """Every level is solved by its first turn of one token: that is no share of successes."""
    ones = np.ones((4, 1), int)
    attempts = retry.Attempts(ones.astype(bool), ones, ones, 0)
    found = retry.rates(attempts, attempts, SimpleNamespace(success=ones.astype(bool), tokens=ones), (1,))["1"]
    for name in ("retry_tokens", "retry_turns", "pass_at_tokens"):
        assert found[name] == {"mean": 1.0, "low": 1.0, "high": 1.0, "n": 4}
    assert found["retry"]["low"] < 1


def test_letters_that_the_tokenizer_changes_are_refused():
    small = tokenizers.load_small()
    backend = Backend.from_str(small.backend.to_str())
    backend.normalizer = Lowercase()
    lower = dataclasses.replace(small, backend=backend)
    assert refusal(retry.feedback_tokens, lower).key == "--attempts"
    assert small.decode(retry.feedback_tokens(small)) == FEEDBACK


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
    tokenizer = tokenizers.load_small()
    for row, item in enumerate((16, 17)):
        lengths, start = greedy.observation_length[row], f"{describe(STARTS[item])}Action:"
        shown = [tokenizer.decode(greedy.observation[row, turn, : lengths[turn]].tolist()) for turn in range(6)]
        assert [text.count(FEEDBACK) for text in shown] == [0, 0, 1, 0, 1, 0]
        assert shown[0] == start
        assert {shown[turn].split(FEEDBACK)[1] for turn in (2, 4)} == {start}

    starts, reset = itertools.count(), Maze.reset
    monkeypatch.setattr(Maze, "reset", lambda self, item: reset(self, next(starts) % 20))
    assert "the environment began again with 'The goal" in str(refusal(play, eval_set, params, 2, 0.0))
