"""Runs that learn from what their policy found: AgentEvol and pairs of a planner. Killed, they go on bit for bit."""

import shutil

import numpy as np
import pytest
import tiny_run

from agentrl_jax.config import load_config
from agentrl_jax.offline.rows import TokenRows
from agentrl_jax.train.explored import ExploredFiles
from agentrl_jax.train.run import train

BASE = {
    "tasks": [{"env": "SimpleSokoban", "groups": 2}],
    "prompt": {"max_turns": 3, "max_actions_per_turn": 2, "max_response_tokens": 6, "stop_at_answer": True},
    "model": {"layers": 1, "embed_dim": 16, "heads": 2, "kv_heads": 1, "mlp_width": 16},
    "algo": {"preset": "grpo"},
    "train": {"checkpoint_every": 1, "keep": 20, "validation_episodes": 8},
    "evaluation": {"episodes": 8},
}
EVOLVE = {
    "imitation": {"levels": 16},
    "stages": [{"kind": "evolve", "rounds": 2, "levels": 32, "samples": 2, "steps": 40, "batch": 8, "lr": 0.01}],
}
PAIRS = {
    "imitation": {"levels": 16, "steps": 50, "batch": 16, "lr": 0.01},
    "stages": ["imitation", {"kind": "dpo", "levels": 64, "steps": 50, "batch": 8, "lr": 0.001}],
}


def resumed(run, config, keep, copy):
    """The run again, from an earlier checkpoint."""
    shutil.copytree(run, copy)
    (copy / "summary.json").unlink()
    for step in tiny_run.checkpoints(copy):
        if step > keep:
            shutil.rmtree(copy / "checkpoints" / str(step))
    train(load_config(config | {"run_dir": str(copy)}))
    assert tiny_run.metrics(copy) == tiny_run.metrics(run)
    last = tiny_run.checkpoints(run)[-1]
    assert tiny_run.checkpoint(copy, last) == tiny_run.checkpoint(run, last)


@pytest.mark.parametrize(("name", "part", "keep"), [("evolve", EVOLVE, 3), ("evolve", EVOLVE, 2), ("dpo", PAIRS, 3)])
def test_a_killed_run_explores_alike(name, part, keep, tmp_path):
    config, run = BASE | part, tmp_path / "run"
    train(load_config(config | {"run_dir": str(run)}))
    rows = [row for row in tiny_run.metrics(run) if row["stage"] == name]
    files = ExploredFiles(run, 0 if name == "evolve" else 1)
    if name == "evolve":
        assert [("evolve/success" in row) for row in rows] == [False, False, True, False, True, False]
        found = files.read(1, must_exist=True)
        assert rows[2]["evolve/success"] == found.success
        assert isinstance(found.rows, TokenRows)
    else:
        found = files.read(0, must_exist=True)
        assert len(found.rows) % 2 == 0
        for chosen in range(0, len(found.rows), 2):  # both answers follow the same context
            both = [slice(found.rows.starts[row], found.rows.starts[row + 1]) for row in (chosen, chosen + 1)]
            first, second = (found.rows.tokens[here][~found.rows.trained[here]] for here in both)
            np.testing.assert_array_equal(first, second)
            assert found.rows.tokens[both[0]].tolist() != found.rows.tokens[both[1]].tolist()
        assert rows[-1]["dpo/accuracy"] > rows[0]["dpo/accuracy"] - 0.05
    resumed(run, config, keep, tmp_path / "copy")
