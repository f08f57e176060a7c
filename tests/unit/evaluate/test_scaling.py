"""Test-time scaling of runs: its points are those of `agentrl eval`, and retries are summed up by attempt."""

import dataclasses
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import refusing
from evaluating import refusal, result_of
from tokenizers import Tokenizer as Backend
from tokenizers.normalizers import Lowercase

from agentrl_jax.evaluate import retry, scaling
from agentrl_jax.evaluate.eval_set import EvalSet, evaluate_run
from agentrl_jax.formats.episodes import read_episodes
from agentrl_jax.rollout.trajectory import TRUNCATIONS
from agentrl_jax.runs.rollout_records import read_record, record_path, write_record
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.services.environments.maze.env import Maze
from agentrl_jax.text import tokenizer as tokenizers
from agentrl_jax.text.styles import FEEDBACK
from agentrl_jax.viewer.columns import unpack
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.scenes import run_scenes

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


LEVELS, ATTEMPTS, TURNS = 8, 2, 2


@pytest.mark.nightly
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


@pytest.fixture(scope="module")
def scaled(finished, tmp_path_factory):
    """The result with the turns of training, four samples, and two attempts; records of these."""
    out = tmp_path_factory.mktemp("scaled")
    axes = ("--turns", "2", "--samples", "1,2,4", "--selector", "logprob", "--attempts", "1,2")
    found = result_of("scaling", finished.folder, *WORDS, *axes, "--out", out, "--record", out / "new")
    assert found == json.loads((out / "scaling.json").read_text())
    assert (out / "scaling.png").exists()
    return found, out / "new", [read_record(record_path(out / "new", number)) for number in (1, 2)]


@pytest.mark.nightly
def test_points_are_evaluations(finished, scaled):
    found, *_ = scaled
    plain = evaluate_run(finished.folder, env="FrozenLake", episodes=LEVELS, samples=4)
    assert found["trained"] == {"turns": 2, "tokens": 6}
    for name in ("success_greedy", "random", "optimal"):
        assert found["axes"]["turns"][0][name] == plain[name]
    samples = found["axes"]["samples"]
    assert [point["samples"] for point in samples] == [1, 2, 4]
    for point in samples:
        for name in ("pass_at", "pass_all"):
            assert point[name] == plain[name][str(point["samples"])]
        assert point["pass_all"]["mean"] <= point["best_of"]["mean"] <= point["pass_at"]["mean"]
        for name in ("mean_turns", "mean_tokens"):
            assert point[name] == pytest.approx(point["samples"] * plain[name])
    assert samples[0]["best_of"] == samples[0]["pass_at"]
    once, twice = found["axes"]["attempts"]
    for point, of_samples in zip((once, twice), samples):
        for name in ("pass_at", "random", "optimal"):
            assert point[name] == of_samples[name]
    # One attempt is the first sample.
    assert once["retry"]["mean"] == np.mean([first for first, *_ in plain["outcomes"]["samples"]])
    assert once["retry_greedy"] == plain["success_greedy"]
    for name in ("retry", "retry_greedy", "retry_tokens", "retry_turns"):
        assert once[name]["mean"] <= twice[name]["mean"]
    # The compact prompt has few letters, but the end of a line.
    assert 0 < found["retry"]["new_tokens"] < 28
    random = np.array(plain["outcomes"]["random"])
    for point in found["axes"]["samples"]:
        assert point["random"]["mean"] == pytest.approx(np.mean(1 - (1 - random) ** point["samples"]))
    assert found["axes"]["turns"][0]["baseline_turns"]["null"] == 2
    for axis, name in {"turns": "success", "samples": "pass_at", "attempts": "retry"}.items():
        for point in found["axes"][axis]:
            assert point["null"]["mean"] == 0
            random, optimal = (point[line]["mean"] for line in ("random", "optimal"))
            assert point["gap_closed"] == pytest.approx((point[name]["mean"] - random) / (optimal - random))


def played(record):
    return np.arange(record.reward.shape[1]) < record.num_turns[:, None]


@pytest.mark.nightly
def test_attempts_are_recorded(scaled):
    result, folder, records = scaled
    greedy, sampled = records
    point = result["axes"]["attempts"][-1]
    for record, name in ((greedy, "retry_greedy"), (sampled, "retry")):
        assert record.success.any(axis=1).mean() == pytest.approx(point[name]["mean"])
        assert (record.header.horizon, record.header.evaluation.attempts) == (ATTEMPTS * TURNS, ATTEMPTS)
    assert sampled.num_turns.mean() == pytest.approx(point["retry_turns"]["mean"])
    assert sampled.length.sum(axis=1).mean() == pytest.approx(point["retry_tokens"]["mean"])
    # They begin after a failure on the same level.
    for record in records:
        steps = np.diff(record.attempt, axis=1)[played(record)[:, 1:]]
        assert set(steps.tolist()) == {0, 1}
        assert record.attempt.max() == ATTEMPTS - 1
        executed = (record.actions >= 0).sum(axis=(1, 2))
        for row, scenes in enumerate(run_scenes(folder, read_config(folder), record)):
            again = 1 + np.flatnonzero(np.diff(record.attempt[row, : record.num_turns[row]]))
            assert len({record.state_hash[row, turn].tobytes() for turn in [0, *again]}) == 1
            assert not record.success[row, : again.max(initial=0)].any()
            assert len(scenes) == 1 + executed[row] + len(again)
            starts = [scene for scene in scenes if str(scene["action"]).startswith("the start of attempt")]
            names = [f"the start of attempt {number + 2}" for number in range(len(again))]
            assert [scene["action"] for scene in starts] == names
            assert all(scene["cells"] == scenes[0]["cells"] for scene in starts)
            assert [scene["turn"] for scene in starts] == (again - 1).tolist()


@pytest.mark.nightly
def test_page_and_formats_know_the_attempt(scaled, tmp_path):
    _, folder, (greedy, sampled) = scaled
    _, (_, _, block) = RunData(folder).refresh()
    _, columns = unpack(block)
    np.testing.assert_array_equal(columns["attempt"], sampled.attempt[played(sampled)])
    for row, episode in enumerate(read_episodes(folder, 2)):
        numbers = [turn.extra["attempt"] for turn in episode.turns]
        assert numbers == sampled.attempt[row, : sampled.num_turns[row]].tolist()
        for before, number, turn in zip([0, *numbers], numbers, episode.turns):
            assert (FEEDBACK.strip() in turn.message) == (number > before)
    # Older files do not know it.
    path = write_record(tmp_path, greedy)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if name != "attempt"}
    np.savez_compressed(path, **arrays)
    assert not read_record(path).attempt.any()
