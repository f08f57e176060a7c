"""Slow checks of what the quick tests of the same name check."""

import json

import numpy as np
import pytest
import tiny_run

from envs_jax.budget import Budget
from envs_jax.frozen_lake.levels import parse_maps
from envs_jax.frozen_lake.open_loop import committed_success
from envs_jax.frozen_lake.oracle import optimal_success, random_success

LAKES = """
SFFF
FFFF
FFFF
FFFG

SFFG
HHHH
HHHH
HHHH

SHFF
HHFF
FFFF
FFFG
"""


def evaluate(run, *words):
    code, out, err = tiny_run.command("eval", str(run), "--json", *words)
    assert code == 0, err
    return json.loads(out)


def test_lakes_from_a_file(finished, tmp_path):
    """As text and as a pack; the lines are at the agent's budget: two turns of two actions of the ten of an episode."""
    file, pack = tmp_path / "lakes.txt", tmp_path / "lakes.npy"
    file.write_text(LAKES)
    levels = np.stack(parse_maps(LAKES))
    np.save(pack, levels)
    words = ("--env", "FrozenLake", "--temperature", "0.5", "--levels")
    result = evaluate(finished.folder, *words, str(file))
    assert (result["env"], result["temperature"], result["success"]["n"]) == ("FrozenLake", 0.5, 3)
    assert evaluate(finished.folder, *words, str(pack))["success"] == result["success"]
    rate = float(np.float32(1 / 3))
    assert result["random"]["mean"] == pytest.approx(random_success(levels, 4, rate).mean())
    assert result["optimal"]["mean"] == pytest.approx(committed_success(levels, Budget(10, 2, 2), rate).mean())
    # By hand: from the start of the third map every move but a slip at the edge ends in a hole.
    assert 0 < result["random"]["mean"] < result["optimal"]["mean"] < optimal_success(levels, 4, rate).mean() < 1
    assert (result["optimal_is"], result["null"]["mean"]) == ("exact", 0.0)
