"""A run whose teacher reads plans goes on with the same bits, and needs a teacher that can read."""

import shutil

import pytest
import tiny_run

CONFIG = """
tasks: [{env: SimpleSokoban, groups: 2, levels: LEVELS}, {env: FrozenLake-deterministic, groups: 2}]
prompt: {max_turns: 2, max_actions_per_turn: 2, max_actions: 10, max_response_tokens: 6}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
rollout: {group_size: 2}
algo: {preset: grpo, filter: none, minibatches: 2, distillation: {kind: self, teacher: ema, loss: full}}
optim: {lr: 0.01}
imitation: {levels: 2, steps: 25, batch: 4, lr: 0.03, hinted: 0.5}
train: {iterations: 3, checkpoint_every: 1, keep: 4, validate_every: 2, validation_episodes: 8, trajectories_every: 0}
evaluation: {episodes: 8}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("distillation")
    return tiny_run.write_config(home, CONFIG), home / "run"


def test_a_weak_teacher_is_accepted_later_and_the_run_goes_on_from_any_checkpoint(run, tmp_path):
    file, folder = run
    assert "accept_weak_teacher" in tiny_run.refused(folder, file)
    accepted = "--algo.distillation.accept_weak_teacher", "true"
    tiny_run.trained(folder, file, *accepted)
    rows = tiny_run.metrics(folder)[1:]
    assert [sorted(key for key in row if key.endswith("_success") and "distill" in key) for row in rows] == [
        ["distill/student_success", "distill/teacher_success"],
        [],
        ["distill/student_success", "distill/teacher_success"],
    ]
    assert all(row["distill/kl"] > 0 and row["distill/planned"] > 0 for row in rows)
    again = tmp_path / "run"
    shutil.copytree(folder, again)
    (again / "summary.json").unlink()
    for step in (3, 4):
        shutil.rmtree(again / "checkpoints" / str(step))
    tiny_run.trained(again, file, *accepted)
    assert tiny_run.metrics(again) == tiny_run.metrics(folder)
    stored = tiny_run.checkpoint(folder, 4)
    assert tiny_run.checkpoint(again, 4) == stored
    assert [name for name in stored if "teacher" in name] != []
    assert tiny_run.summary(again) == tiny_run.summary(folder)
