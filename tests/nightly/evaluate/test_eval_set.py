"""Evaluations of the levels of a run, with more samples and beside another run."""

import shutil

import numpy as np
import pytest
import tiny_run
from evaluating import refusal, result_of

from agentrl_jax.evaluate import against

WORDS = ("--env", "FrozenLake", "--episodes", "8")


def test_samples_are_other_episodes_on_the_same_levels(finished):
    """The first of several samples is the only one of a plain evaluation; greedy play stays the same."""
    one, several = (result_of("eval", finished.folder, *WORDS, "--samples", k) for k in (1, 3))
    assert (one["samples"], several["samples"], several["success"]["n"]) == (1, 3, 8)
    assert "pass_at" not in one
    for name in ("success_greedy", "random", "optimal", "seen"):
        assert one[name] == several[name]
    seen = one["seen"]
    assert (seen["held_out"], seen["seen_levels"], seen["seen_images"]) == (True, 0, 0)
    assert [row[0] for row in several["outcomes"]["samples"]] == one["outcomes"]["success"]
    assert several["pass_at"]["3"]["mean"] > several["success"]["mean"] > several["pass_all"]["3"]["mean"]


def test_two_runs_are_compared_level_by_level(finished, tmp_path, monkeypatch):
    words = (*WORDS, "--samples", "2")
    result = result_of("eval", finished.folder, *words, "--against", finished.folder)
    assert result["run"] == result["against"], "the same evaluation gives the same numbers"
    for name in ("difference", "difference_greedy"):
        assert (result[name]["mean"], result[name]["n"]) == (0, 8)
    with monkeypatch.context() as patch:
        patch.setattr(against, "evaluate_against", lambda *_, **__: result)
        out = tiny_run.done("eval", str(finished.folder), *words, "--against", str(finished.folder))
    assert "paired over 8 levels" in " ".join(out.split())
    other = shutil.copytree(finished.folder, tmp_path / "other")
    before, after = (other / "config.yaml").read_text().split("env: FrozenLake\n")
    changed = after.replace("options: {}", "options: {frozen_probability: 0.7}", 1)
    (other / "config.yaml").write_text(f"{before}env: FrozenLake\n{changed}")
    refused = refusal("eval", finished.folder, *words, "--against", other)
    assert "play different levels of FrozenLake" in str(refused)


def test_the_tasks_of_the_run_give_what_its_summary_says_and_change_nothing_in_it(finished):
    summary = tiny_run.summary(finished.folder)
    before = {file: file.read_bytes() for file in finished.folder.rglob("*") if file.is_file()}
    parts = [result_of("eval", finished.folder), result_of("eval", finished.folder, "--env", "FrozenLake")]
    assert {file: file.read_bytes() for file in finished.folder.rglob("*") if file.is_file()} == before
    assert [(part["env"], part["iteration"]) for part in parts] == [("SimpleSokoban", 4), ("FrozenLake", 4)]
    numbers = [part["success"]["n"] for part in parts]
    assert numbers == [2, 12], "the file has no more than two"
    shown = {name: summary["success"][name]["mean"] for name in ("random", "optimal")}
    shown |= {name: summary[name]["trained"]["mean"] for name in ("success", "success_greedy")}
    shown |= {name: summary[name] for name in ("mean_turns", "mean_tokens")}
    for name, value in shown.items():
        found = [part[name]["mean"] if isinstance(part[name], dict) else part[name] for part in parts]
        assert np.average(found, weights=numbers) == pytest.approx(value)
    random, trained, optimal = (summary["success"][line]["mean"] for line in ("random", "trained", "optimal"))
    assert summary["gap_closed"] == pytest.approx((trained - random) / (optimal - random))
