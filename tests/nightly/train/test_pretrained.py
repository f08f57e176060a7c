import json

import made_run
import numpy as np
import pytest
import tiny_run

from agentrl_jax.algos import collapse
from agentrl_jax.models.io.load import load_pretrained


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made_run.write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module", params=made_run.CHANGES)
def run(request, folder, tmp_path_factory):
    home = tmp_path_factory.mktemp(request.param)
    file = tiny_run.write_config(home, made_run.pretrained_config(folder, request.param))
    tiny_run.trained(home / "run", file)
    return file, home / "run", request.param


def test_only_what_is_trained_is_in_the_checkpoint_and_moves(run, folder):
    _, path, kind = run
    state = {name: leaf for name, leaf in tiny_run.checkpoint(path, 3).items() if "params" in name and "policy" in name}
    base = load_pretrained(folder).params
    if kind in ("lora", "upper"):
        assert {leaf[1][0] for leaf in state.values()} == {1 if kind == "upper" else 2}
        adapters = {f"['{name}']['{part}']" for name in ("query", "down") for part in "ab"}
        assert {name.split("['policy']")[1] for name in state} == adapters
        assert not any("frozen" in name for name in tiny_run.checkpoint(path, 3))
        return
    gates = next(leaf for name, leaf in state.items() if name.endswith("['gate']"))
    assert gates[1][0] == (1 if kind == "frozen" else 2)
    trained = np.frombuffer(gates[2], np.float32).reshape(gates[1])
    assert not np.allclose(trained[-1], base["layers"]["gate"][-1])
    assert any("embedding" in name for name in state) == (kind == "whole")


def test_a_run_goes_on_where_it_was_and_can_be_evaluated(run):
    file, path, _ = run
    before = tiny_run.checkpoint(path, 3), tiny_run.metrics(path)
    tiny_run.trained(path, file)
    assert (tiny_run.checkpoint(path, 3), tiny_run.metrics(path)) == before
    success = json.loads(tiny_run.done("eval", str(path), "--episodes", "4", "--json"))["success"]
    assert success == tiny_run.summary(path)["success"]["trained"]


def test_a_roll_back_keeps_what_is_frozen(run, tmp_path, monkeypatch):
    """Two roll-backs to the start of learning restore the initial policy, with the same frozen parameters."""
    sign = collapse.Alarm("always", "validation/success", "share", "above", -1.0, 1, True, "always", "made up")
    monkeypatch.setattr(collapse, "ALARMS", (sign,))
    file, _, _ = run
    words = ("--train.on_collapse", "roll_back", "--train.max_roll_backs", "1", "--train.validate_every", "1")
    tiny_run.trained(tmp_path / "run", file, *words)
    summary = tiny_run.summary(tmp_path / "run")
    assert [back["step"] for back in summary["roll_backs"]] == [1, 1]
    assert summary["success"]["trained"] == summary["success"]["imitation"]
