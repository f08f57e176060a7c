"""benchmarks/phases.py measures a tiny model on this machine."""

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


def test_every_phase_is_measured(script, tmp_path, capsys):
    script.main([written(tmp_path), "--rows", "4", "--repeats", "1", "--model.embed_dim", "32"])
    peaks, sizes, header, *lines, last = capsys.readouterr().out.splitlines()
    assert "peaks measured" in peaks
    assert sizes.startswith("4 rows of 2 turns, microbatches of 4 rows")
    assert header.split()[:3] == ["side", "ms", "tokens/s"]
    assert [line.split()[:2] for line in lines] == [[name, "here"] for name in script.MEASURED]
    assert all(float(number) > 0 for line in lines for number in line.split()[2:6])
    assert {line.split()[6] for line in lines} <= {"compute", "memory"}
    assert "turns/s" in last
