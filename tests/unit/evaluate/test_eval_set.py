"""`agentrl eval` on the checkpoint of a tiny run."""

import re
import shutil

import numpy as np
import pytest
import tiny_run
from evaluating import refusal, result_of

from agentrl_jax.evaluate import against

WORDS = ("--env", "FrozenLake", "--episodes", "8")


def test_the_tasks_of_the_run_give_what_its_summary_says(finished):
    summary = tiny_run.summary(finished.folder)
    parts = [result_of("eval", finished.folder), result_of("eval", finished.folder, "--env", "FrozenLake")]
    assert [(part["env"], part["iteration"], part["success"]["n"]) for part in parts] == [
        ("SimpleSokoban", 4, 2),  # the file has no more
        ("FrozenLake", 4, 12),
    ]
    for table, key, name in (
        ("success", "trained", "success"),
        ("success_greedy", "trained", "success_greedy"),
        ("success", "random", "random"),
        ("success", "optimal", "optimal"),
    ):
        pooled = np.average([part[name]["mean"] for part in parts], weights=[2, 12])
        assert pooled == pytest.approx(summary[table][key]["mean"])
    for name in ("mean_turns", "mean_tokens"):
        assert np.average([part[name] for part in parts], weights=[2, 12]) == pytest.approx(summary[name])
    random, optimal = (summary["success"][line]["mean"] for line in ("random", "optimal"))
    assert summary["gap_closed"] == pytest.approx((summary["success"]["trained"]["mean"] - random) / (optimal - random))


def test_samples_are_other_episodes_on_the_same_levels(finished):
    """The first of several samples is the only one of a plain evaluation; greedy play stays the same."""
    one, several = (result_of("eval", finished.folder, *WORDS, "--samples", k) for k in (1, 3))
    assert (one["samples"], several["samples"]) == (1, 3)
    assert "pass_at" not in one
    for name in ("success_greedy", "random", "optimal", "seen"):
        assert one[name] == several[name]
    seen = one["seen"]
    assert (seen["held_out"], seen["seen_levels"], seen["seen_images"]) == (True, 0, 0)
    assert several["success"]["n"] == 8
    assert [row[0] for row in several["outcomes"]["samples"]] == one["outcomes"]["success"]
    assert list(several["pass_at"]) == list(several["pass_all"]) == ["1", "2", "3"]
    for table in ("pass_at", "pass_all"):
        assert several[table]["1"]["mean"] == pytest.approx(several["success"]["mean"])
    rising, falling = ([several[table][k]["mean"] for k in "123"] for table in ("pass_at", "pass_all"))
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert rising[-1] > falling[-1]


def test_two_runs_are_compared_level_by_level(finished, tmp_path, monkeypatch):
    words = (*WORDS, "--samples", "2")
    result = result_of("eval", finished.folder, *words, "--against", finished.folder)
    plain = result["run"]
    assert plain == result["against"], "the same evaluation gives the same numbers"
    assert len(plain["outcomes"]["success_greedy"]) == 8
    assert np.mean(plain["outcomes"]["success"]) == plain["success"]["mean"]
    for name in ("difference", "difference_greedy"):
        assert (result[name]["mean"], result[name]["n"]) == (0, 8)
    monkeypatch.setattr(against, "evaluate_against", lambda *_, **__: result)
    code, out, _ = tiny_run.command("eval", str(finished.folder), *words, "--against", str(finished.folder))
    assert code == 0
    for title in ("agent, greedy", "agent, pass@2", "agent, pass^2", "│ optimal play"):
        assert out.count(title) == 2
    assert re.search(r"greedy: \+0\.0 points .*, paired over 8 levels", " ".join(out.split()))
    monkeypatch.undo()
    other = shutil.copytree(finished.folder, tmp_path / "other")
    before, after = (other / "config.yaml").read_text().split("env: FrozenLake\n")
    changed = after.replace("options: {}", "options: {frozen_probability: 0.7}", 1)
    assert changed != after
    (other / "config.yaml").write_text(f"{before}env: FrozenLake\n{changed}")
    refused = refusal("eval", finished.folder, *words, "--against", other)
    assert "play different levels of FrozenLake" in str(refused)
