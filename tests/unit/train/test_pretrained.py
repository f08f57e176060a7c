"""Runs that start from a pretrained model: adapters, frozen layers, resume, evaluation."""

import json

import jax
import numpy as np
import pytest
import tiny_run

from agentrl_jax.algos import collapse
from agentrl_jax.models import decoder
from agentrl_jax.models.io.hf_config_out import describe
from agentrl_jax.models.io.load import load_pretrained, save_pretrained
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.text import tokenizer as tokenizers

SHAPE = DecoderConfig(
    vocab_size=480,  # more than the tokenizer has, as Qwen's embedding has
    num_layers=2,
    embed_dim=16,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    mlp_width=16,
    qkv_bias=True,
)
RUN = """
tasks: [{env: FrozenLake, groups: 2}]
prompt: {max_turns: 2, max_actions_per_turn: 2, max_actions: 10, max_response_tokens: 6}
model: {pretrained: MODEL, critic: separate, CHANGES}
rollout: {group_size: 2}
algo: {preset: starpo}
optim: {lr: 0.01}
imitation: {levels: 4, steps: 5, batch: 4, lr: 0.03}
train: {iterations: 2, checkpoint_every: 1, validate_every: 2, validation_episodes: 4}
evaluation: {episodes: 4}
"""
CHANGES = {
    "lora": "lora: {rank: 2, targets: [query, down]}, precision: bfloat16",
    "upper": "lora: {rank: 2, targets: [query, down]}, frozen_layers: 1",
    "frozen": "frozen_layers: 1, remat: dots",
    "whole": "precision: mixed",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model with the shipped tokenizer, in Hugging Face's layout."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    params = decoder.init_params(jax.random.key(3), SHAPE)
    files = {"tokenizer.json": tokenizers.load_small().backend.to_str().encode()}
    save_pretrained(path, params, describe(SHAPE, max_positions=512), files=files)
    return path


@pytest.fixture(scope="module", params=CHANGES)
def run(request, folder, tmp_path_factory):
    """A finished run: its YAML file and its folder."""
    home = tmp_path_factory.mktemp(request.param)
    text = RUN.replace("MODEL", str(folder)).replace("CHANGES", CHANGES[request.param])
    file = tiny_run.write_config(home, text)
    code, _, err = tiny_run.command("train", file, "--run_dir", str(home / "run"))
    assert (code, err) == (0, "")
    return file, home / "run", request.param


@pytest.mark.slow
def test_only_what_is_trained_is_in_the_checkpoint_and_moves(run, folder):
    _, path, kind = run
    state = {name: leaf for name, leaf in tiny_run.checkpoint(path, 3).items() if "params" in name and "policy" in name}
    base = load_pretrained(folder).params
    if kind in ("lora", "upper"):
        assert {leaf[1][0] for leaf in state.values()} == {1 if kind == "upper" else 2}
        assert {name.split("['policy']")[1] for name in state} == {
            f"['{name}']['{part}']" for name in ("query", "down") for part in "ab"
        }
        assert not any("frozen" in name for name in tiny_run.checkpoint(path, 3))
        return
    gates = next(leaf for name, leaf in state.items() if name.endswith("['gate']"))
    assert gates[1][0] == (1 if kind == "frozen" else 2)
    trained = np.frombuffer(gates[2], np.float32).reshape(gates[1])
    assert not np.allclose(trained[-1], base["layers"]["gate"][-1])
    assert any("embedding" in name for name in state) == (kind == "whole")


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_and_can_be_evaluated(run):
    """Repeating the command of a finished run changes nothing."""
    file, path, _ = run
    before = tiny_run.checkpoint(path, 3), tiny_run.metrics(path)
    code, _, err = tiny_run.command("train", file, "--run_dir", str(path))
    assert (code, err) == (0, "")
    assert (tiny_run.checkpoint(path, 3), tiny_run.metrics(path)) == before
    code, out, _ = tiny_run.command("eval", str(path), "--episodes", "4", "--json")
    assert code == 0
    assert json.loads(out)["success"]["n"] == 4
    summary = json.loads((path / "summary.json").read_text())
    assert json.loads(out)["success"] == summary["success"]["trained"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.layers", "3"], "model.layers is 3, but model.pretrained '"),
        (["--model.frozen_layers", "2", "--model.lora.rank", "0"], "2 frozen layers of 2"),
        (["--model.lora.rank", "0"], "model.precision is bfloat16"),
        (["--model.pretrained", "nowhere"], "nowhere: no such folder"),
        (["--model.pretrained", ""], "model.pretrained is empty"),
        (["--model.revision", "main"], "model.revision is 'main', but model.online is false"),
        (["--model.online", "true", "--model.pretrained", ""], "model.online is true, but model.pretrained is empty"),
        (["--prompt.max_turns", "40"], "the longest context of a rollout has"),
    ],
)
def test_what_does_not_fit_is_refused(folder, tmp_path, words, message):
    file = tiny_run.write_config(tmp_path, RUN.replace("MODEL", str(folder)).replace("CHANGES", CHANGES["lora"]))
    code, _, err = tiny_run.command("train", file, "--run_dir", str(tmp_path / "run"), *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_roll_back_keeps_what_is_frozen(run, tmp_path, monkeypatch):
    """Two roll-backs to the start of learning restore the initial policy, with the same frozen parameters."""
    sign = collapse.Alarm("always", "rollout/horizon", "turns", "above", 0.0, 1, True, "always", "made up")
    monkeypatch.setattr(collapse, "ALARMS", (sign,))
    file, _, _ = run
    words = ("--run_dir", str(tmp_path / "run"), "--train.on_collapse", "roll_back", "--train.max_roll_backs", "1")
    code, _, err = tiny_run.command("train", file, *words)
    assert (code, err) == (0, "")
    summary = tiny_run.summary(tmp_path / "run")
    assert [back["step"] for back in summary["roll_backs"]] == [1, 1]
    assert summary["success"]["trained"] == summary["success"]["imitation"]
