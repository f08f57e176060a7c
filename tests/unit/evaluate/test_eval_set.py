"""Which runs `agentrl eval` compares, and on which levels."""

import shutil

import numpy as np
import pytest
import tiny_run
from evaluating import refusal, result_of

from agentrl_jax.config import TaskConfig, load_config
from agentrl_jax.evaluate import against
from agentrl_jax.runs.run_folder import write_config

TASKS = "tasks: [{env: SimpleSokoban, groups: 2, levels: LEVELS}, {env: FrozenLake, groups: 2}]"
TASKS_OF = {
    "lake": "{env: FrozenLake, groups: 2}",
    "wet": "{env: FrozenLake, groups: 2, options: {success_rate: 0.5, frozen_probability: 0.7}}",
    "dry": "{env: FrozenLake, groups: 2, options: {success_rate: 1.0}}",
    "babyai": "{env: BabyAI, groups: 2, options: {objects_shown: 8}}",
}


def test_different_tasks_are_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(against, "evaluate_run", lambda *args, **options: pytest.fail("played"))
    assert TASKS in tiny_run.CONFIG
    texts = {name: tiny_run.CONFIG.replace(TASKS, f"tasks: [{task}]") for name, task in TASKS_OF.items()}
    for name, text in (texts | {"served": tiny_run.SERVED}).items():
        (tmp_path / name).mkdir()
        write_config(tmp_path / name, load_config(tiny_run.write_config(tmp_path, text)))
    for first, second, words, parts in (
        ("lake", "babyai", (), ["plays FrozenLake and", "plays BabyAI (objects_shown 8), which cannot"]),
        ("wet", "dry", (), ["FrozenLake (success_rate 0.5, frozen_probability 0.7)", "FrozenLake (success_rate 1.0)"]),
        ("served", "lake", (), ["plays maze and", "plays FrozenLake"]),
        # Both would have to play it.
        ("lake", "served", ("--env", "FrozenLake"), ["has items of maze only"]),
        ("lake", "served", ("--panel", "frozen-lake-4x4-v2"), ["on the services maze"]),
        ("served", "lake", ("--panel", "maze-v1"), ["on compiled environments"]),
        ("lake", "dry", ("--levels", "LEVELS"), ["expected one of S F H G"]),
    ):
        words = [tmp_path / "levels.txt" if word == "LEVELS" else word for word in words]
        message = str(refusal("eval", tmp_path / first, "--against", tmp_path / second, *words))
        assert all(part in message for part in parts)
    # What both can play is not.
    for first, second, options in (
        ("lake", "babyai", {"env": "FrozenLake"}),
        ("lake", "babyai", {"panel": "frozen-lake-4x4-v2"}),
        ("wet", "dry", {"panel": "frozen-lake-4x4-v2"}),
        ("lake", "dry", {}),
    ):
        with pytest.raises(pytest.fail.Exception, match="played"):
            against.evaluate_against(tmp_path / first, tmp_path / second, **options)
    # What is shown of an item is a run's own: whether the levels are the same is known after play.
    assert not against._differ(*(TaskConfig(env="BabyAI", groups=2, options={"objects_shown": n}) for n in (8, 6)))


WORDS = ("--env", "FrozenLake", "--episodes", "8")


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
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
