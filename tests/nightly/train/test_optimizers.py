"""Runs with other optimizers than adamw: a stop changes no bit."""

import pytest
import tiny_run
from refusing import refusal

from agentrl_jax.config import load_config
from agentrl_jax.train.run import train

OWN = """
import optax
from agentrl_jax.rules import rule

@rule()
def slow(*, b1: float = 0.9, warm: int = 3):
    return optax.chain(optax.nadamw(1.0, b1=b1), optax.scale_by_schedule(lambda i: (i + 1) / (i + warm)))
"""
OPTIMIZERS = {
    "lion": "{kind: lion, lr: 0.001, schedule: {kind: wsd, end_factor: 0.1}, warmup_share: 0.5}",
    "adafactor": "{kind: adafactor, lr: 0.01, min_dim: 8}",
    "sgd": "{kind: sgd, lr: 0.5, groups: [{match: embedding, lr_factor: 0.0}]}",
    "muon": "{kind: muon, lr: 0.01, schedule: cosine}",
    "own": "{kind: 'NAME:slow', lr: 0.01, b1: 0.8}",
}


@pytest.fixture
def file_of(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(OWN)

    def write(kind):
        optim = OPTIMIZERS[kind].replace("NAME", name)
        return tiny_run.write_config(tmp_path, tiny_run.CONFIG.replace("{lr: 0.01}", optim))

    return write


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_stopped_run_has_the_bits_of_one_that_was_not(kind, file_of, tmp_path):
    whole, again, file = tmp_path / "whole", tmp_path / "again", file_of(kind)
    tiny_run.trained(whole, file)
    tiny_run.resumed(whole, again, file)
    assert tiny_run.metrics(again) == tiny_run.metrics(whole)
    assert tiny_run.summary(again) == tiny_run.summary(whole)


def test_a_group_without_parameters_takes_no_folder(file_of, tmp_path):
    groups = "[{match: nothing, lr_factor: 2.0}]"
    config = load_config(file_of("sgd"), ["--run_dir", str(tmp_path / "run"), "--optim.groups", groups])
    error = refusal(train, config)
    assert (error.key, error.value) == ("optim.groups.0.match", "nothing")
    assert not (tmp_path / "run").exists()
