import json
import shutil

import pytest
import tiny_run

CONFIG = """
tasks: [{env: SimpleSokoban, groups: 2}]
prompt: {max_turns: 3, max_actions_per_turn: 2, max_actions: 6, max_response_tokens: 6}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
rollout: {group_size: 2}
algo: {preset: starpo_s, filter: {ratio: 0.5}, packing: true}
imitation: {plans: optimal, levels: 16, steps: 100, batch: 8, lr: 0.03, dagger_rounds: 2, dagger_levels: 12}
train: {iterations: 1, checkpoint_every: 1, keep: 9, validate_every: 0, validation_episodes: 8, trajectories_every: 0}
evaluation: {episodes: 8}
"""
"""Rounds before chunks 1 and 2 of 4, counted from 0."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dagger")
    file = tiny_run.write_config(folder, CONFIG)
    return tiny_run.Finished(file, folder / "run", tiny_run.trained(folder / "run", file))


def rounds(run):
    return [json.loads((run / "dagger" / f"{number}.json").read_text()) for number in (1, 2)]


@pytest.mark.parametrize("last", [1, 2])
def test_a_run_resumed_between_rounds_ends_like_one_that_was_not_stopped(run, tmp_path, last):
    """Also where the process ended after a round was written and before a step was taken with it."""
    assert "round 2 of 2: " in run.output
    again = shutil.copytree(run.folder, tmp_path / "run")
    for step in tiny_run.checkpoints(again)[last + 1 :]:
        shutil.rmtree(again / "checkpoints" / str(step))
    (again / "summary.json").unlink()
    # Without RL iterations, which a run does not give up for lack of their checkpoint.
    rows = (again / "metrics.jsonl").read_text().splitlines(keepends=True)
    (again / "metrics.jsonl").write_text("".join(rows[:4]))
    tiny_run.trained(again, run.file)
    for read in (tiny_run.metrics, tiny_run.summary, rounds):
        assert read(again) == read(run.folder)
    assert (again / "levels.jsonl").read_text() == (run.folder / "levels.jsonl").read_text()
