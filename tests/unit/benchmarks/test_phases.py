"""benchmarks/phases.py with a tiny model on this machine."""

import sys

import pytest
from paths import ROOT

CONFIG = """
tasks: [{env: Bandit, groups: 4}]
prompt: {max_turns: 2, max_response_tokens: 4}
rollout: {group_size: 2}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
algo: {preset: grpo, minibatches: 1, grad_accum_steps: 2}
"""


@pytest.fixture
def script(monkeypatch):
    """The module of the script, imported from its folder."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import phases

    yield phases
    for name in ("phases", "worker"):
        sys.modules.pop(name, None)


def written(folder):
    file = folder / "tiny.yaml"
    file.write_text(CONFIG)
    return str(file)


def test_only_rows_that_are_trained_count(script, tmp_path):
    """A filter that keeps half of the groups halves the microbatch, and the calls of score and update."""
    words = ["--devices", "1", "--algo.preset", "starpo_s", "--algo.filter.ratio", "0.5"]
    config = script.load_config(written(tmp_path), words)
    ours = script.Ours(config, None, 0, 0)
    assert (ours.run.episodes, ours.rows, ours.microbatch) == (8, 8, 2)
    assert ours.calls()[script.UPDATE] == 2 * config.algo.epochs
    assert ours.calls()[script.SCORE] == 2 * script.score_passes(ours.run)


def test_tunix_is_refused_where_it_would_compute_in_another_type(script, tmp_path, capsys):
    with pytest.raises(SystemExit):
        script.main([written(tmp_path), "--tunix-python", "python", "--model.precision", "mixed"])
    assert "--tunix-python computes in float32, but model.precision is mixed" in capsys.readouterr().err


def test_the_least_difference_is_that_of_the_least_times(script):
    assert script.least([3.0, 2.0, 2.5]) == 2.0
    assert script.least([[1.0, 3.0], [2.0, 2.5], [1.5, 4.0]]) == 1.5  # not 0.5
    assert script.least([[2.0, 1.0]]) != script.least([[2.0, 1.0]])
