"""Slow checks of what the quick tests of the same name check."""

import json

import pytest
import tiny_run

from agentrl_jax.evaluate.eval_set import evaluate_run

WORDS = ("--env", "FrozenLake", "--episodes", "8")


@pytest.fixture(scope="module")
def scaled(finished, tmp_path_factory):
    """The result with three turns besides the two of training, four samples, and two attempts, which are recorded."""
    out = tmp_path_factory.mktemp("scaled")
    axes = ("--turns", "2,3", "--samples", "1,2,4", "--selector", "logprob", "--attempts", "1,2")
    code, printed, err = tiny_run.command(
        "scaling", str(finished.folder), *WORDS, *axes, "--out", str(out), "--json", "--record", str(out / "new")
    )
    assert code == 0, err
    assert json.loads(printed) == json.loads((out / "scaling.json").read_text())
    return json.loads(printed), out


@pytest.fixture(scope="module")
def plain(finished):
    """The same levels and samples without any axis."""
    return evaluate_run(finished.folder, env="FrozenLake", episodes=8, samples=4)


def test_points_are_evaluations(plain, scaled):
    found, _ = scaled
    assert found["trained"] == {"turns": 2, "tokens": 6}
    assert list(found["axes"]) == ["turns", "samples", "attempts"]
    two, three = found["axes"]["turns"]
    assert (two["turns"], three["turns"]) == (2, 3)
    for name in ("success_greedy", "random", "optimal"):
        assert two[name] == plain[name]
    samples = found["axes"]["samples"]
    assert [point["samples"] for point in samples] == [1, 2, 4]
    for point in samples:
        assert point["pass_at"] == plain["pass_at"][str(point["samples"])]
        assert point["pass_all"] == plain["pass_all"][str(point["samples"])]
        assert point["pass_all"]["mean"] <= point["best_of"]["mean"] <= point["pass_at"]["mean"]
    assert samples[0]["best_of"] == samples[0]["pass_at"]
    once, twice = found["axes"]["attempts"]
    for point, of_samples in zip((once, twice), samples):
        for name in ("pass_at", "random", "optimal"):
            assert point[name] == of_samples[name]
    assert (once["attempts"], twice["attempts"]) == (1, 2)
    assert once["retry_greedy"] == plain["success_greedy"]
    for name in ("retry", "retry_greedy", "retry_tokens", "retry_turns"):
        assert once[name]["mean"] <= twice[name]["mean"]
    # The compact prompt has few letters, but the end of a line.
    assert 0 < found["retry"]["new_tokens"] < 28
    assert found["retry"]["context_full"] == 0
