"""A run that does not fit in free memory ends by a sentence."""

import tiny_run

from agentrl_jax.setup import memory


def test_a_run_that_does_not_fit_ends_by_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: 10_000)
    file = tiny_run.write_config(tmp_path)
    code, _, err = tiny_run.command("train", file, "--run_dir", str(tmp_path / "run"))
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("agentrl: the program imitation needs ")
    assert "lower imitation.batch" in err
