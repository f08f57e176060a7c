import json
import shutil

import made_run
import pytest
from refusing import refusal

from agentrl_jax.api import load_policy

SHAPE = "layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return made_run.write_run(tmp_path_factory.mktemp("runs") / "run", SHAPE)


def test_a_checkpoint_that_was_not_copied_as_a_whole_is_named(made, tmp_path, capsys):
    run = shutil.copytree(made, tmp_path / "run")
    assert (load_policy(run).step, capsys.readouterr().err) == (7, "")
    shutil.copytree(run / "checkpoints" / "7", run / "checkpoints" / "9")
    (run / "checkpoints" / "9" / "digests.json").unlink()
    assert load_policy(run).step == 7
    said = capsys.readouterr().err
    assert (said.count("\n"), "checkpoint 9" in said, "step 7" in said) == (1, True, True)
    assert (load_policy(run, 7).step, capsys.readouterr().err) == (7, "")


def test_deleted_checkpoints_of_a_run_that_learned_are_to_be_put_back(made, tmp_path):
    run = shutil.copytree(made, tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    assert refusal(load_policy, run).value is None
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "stage": "rl", "iteration": 1}) + "\n")
    lost = refusal(load_policy, run)
    assert (lost.value, lost.key) == (1, str(run))
