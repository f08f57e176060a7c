"""Test-time scaling of runs: its points are those of `agentrl eval`, and retries are summed up by attempt."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import refusing
from evaluating import refusal
from tokenizers import Tokenizer as Backend
from tokenizers.normalizers import Lowercase

from agentrl_jax.evaluate import retry, scaling
from agentrl_jax.evaluate.eval_set import EvalSet
from agentrl_jax.rollout.trajectory import TRUNCATIONS
from agentrl_jax.text import tokenizer as tokenizers
from agentrl_jax.text.styles import FEEDBACK

WORDS = ("--env", "FrozenLake", "--episodes", "8")


def test_a_record_is_refused_before_anything_is_played(finished, tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    asked, evaluate = [], scaling.evaluate_run
    monkeypatch.setattr(scaling, "evaluate_run", lambda run, **options: asked.append(1) or evaluate(run, **options))
    monkeypatch.setattr(EvalSet, "play", lambda *args: pytest.fail("played"))
    words = ("--turns", "2,3", "--tokens", "6", "--attempts", "1,2", "--record", str(tmp_path / "old"))
    assert refusal("scaling", finished.folder, *WORDS, *words, "--out", tmp_path).key == str(tmp_path / "old")
    assert len(asked) == 1


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
    # Every level is solved by its first turn of one token: that is no share of successes.
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
    assert refusing.refusal(retry.feedback_tokens, lower).key == "--attempts"
    assert small.decode(retry.feedback_tokens(small)) == FEEDBACK
