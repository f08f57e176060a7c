"""A run that learns from data is resumed, and refuses data that changed."""

import json
import shutil

import data_run
import pytest
import tiny_run
from refusing import refusal

from agentrl_jax.config import load_config
from agentrl_jax.train.run import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return data_run.trained(tmp_path_factory.mktemp("data"))


def test_a_killed_run_goes_on_in_the_middle_of_an_epoch(folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    (run / "summary.json").unlink()
    for later in range(2, 5):
        shutil.rmtree(run / "checkpoints" / str(later), ignore_errors=True)
    train(load_config(folder / "data.yaml", {"run_dir": str(run)}))
    assert tiny_run.metrics(run) == tiny_run.metrics(folder / "run")
    assert tiny_run.checkpoint(run, 4) == tiny_run.checkpoint(folder / "run", 4)


def test_other_data_are_refused_where_the_run_needs_them(folder, tmp_path):
    run, config = tmp_path / "run", folder / "data.yaml"
    shutil.copytree(folder / "run", run)
    shutil.rmtree(run / "checkpoints" / "4")
    (run / "summary.json").unlink()
    changed = tmp_path / "talk.jsonl"
    changed.write_text("".join((folder / "talk.jsonl").read_text().splitlines(keepends=True)[1:]))
    digest = load_config(run).stages[0].sha256
    other = load_config(
        config, {"stages.0.data": [str(changed)], "stages.0.sha256": digest, "run_dir": str(tmp_path / "b")}
    )
    error = refusal(train, other)
    assert (error.key, error.value) == ("stages.0.sha256", digest)
    assert not (tmp_path / "b").exists()
    (folder / "talk.jsonl").rename(tmp_path / "gone.jsonl")
    try:
        train(load_config(config, {"run_dir": str(run)}))  # the first stage is done
    finally:
        (tmp_path / "gone.jsonl").rename(folder / "talk.jsonl")
    assert tiny_run.metrics(run) == tiny_run.metrics(folder / "run")
    assert tiny_run.checkpoint(run, 4) == tiny_run.checkpoint(folder / "run", 4)


def test_a_run_without_tasks_learns_the_same_and_another_one_starts_from_it(folder, tmp_path):
    """It ends where the first stage of the run with tasks ended, and plays nothing."""
    text = (folder / "data.yaml").read_text()
    stages = text[text.index("stages:") : text.index("  - {kind: dpo")]
    run, config = tmp_path / "run", tmp_path / "alone.yaml"
    shared = "\n".join(line for line in text.splitlines() if line.startswith(("model:", "prompt:")))
    config.write_text(f"tasks: []\n{shared}\n{stages}")
    tiny_run.trained(run, str(config))
    learned, known = tiny_run.metrics(run), tiny_run.metrics(folder / "run")
    assert [row["sft/loss"] for row in learned] == [row["sft/loss"] for row in known[:2]]
    summary = tiny_run.summary(run)
    steps = load_config(run).stages[0].steps
    assert (summary["success"], summary["stages"], summary["gradient_steps"]) == ({}, ["sft"], steps)
    assert tiny_run.checkpoints(run)[-1] == 2
    (row,) = [json.loads(line) for line in (run / "levels.jsonl").read_text().splitlines()]
    assert not row["known"]
    assert "--env" in tiny_run.refusal("eval", str(run))
    assert "tasks is []" in tiny_run.refusal("plan", str(config))
    found = json.loads(tiny_run.done("eval", str(run), "--env", "SimpleSokoban", "--episodes", "4", "--json"))
    assert (found["success"]["n"], found["seen"]["seen_levels"]) == (4, None)
    tiny_run.done("export", str(run), str(tmp_path / "model"))
    # A process that was killed before the summary was written.
    (run / "summary.json").unlink()
    tiny_run.trained(run, str(config))
    assert tiny_run.summary(run) | {"seconds": 0} == summary | {"seconds": 0}
    begun = tiny_run.trained(
        tmp_path / "rl", str(folder / "data.yaml"), "--stages", "[]", "--train.iterations", "0", "--from", str(run)
    )
    assert "starting from the checkpoint of step 2" in begun
