"""`agentrl export`: other programs read the same policy as the run's, and no file is ever overwritten."""

import dataclasses
import functools
import json

import chex
import jax
import jax.numpy as jnp
import made_run
import numpy as np
import pytest
import tiny_run

from agentrl_jax.config import load_resolved
from agentrl_jax.models import actor_critic, decoder, lora
from agentrl_jax.models.io.load import load_pretrained
from agentrl_jax.models.io.peft_files import load_adapter
from agentrl_jax.setup.policy import load_policy
from agentrl_jax.text import tokenizer as tokenizers

MODELS = {
    "lora": "pretrained: MODEL, precision: bfloat16, lora: {rank: 2, alpha: 3, targets: [query, down]}",
    "upper": "pretrained: MODEL, frozen_layers: 1, lora: {rank: 2, alpha: 3, targets: [query, down]}",
    "frozen": "pretrained: MODEL, frozen_layers: 1",
    "whole": "pretrained: MODEL, critic: separate",
    "fresh": "layers: 2, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16, tied_embeddings: false",
}
TOKENS = np.random.default_rng(0).integers(20, 300, (2, 24))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return made_run.write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """Function from a kind of run to its folder."""
    home = tmp_path_factory.mktemp("runs")
    return functools.cache(lambda kind: made_run.write_run(home / kind, MODELS[kind].replace("MODEL", str(model))))


@functools.partial(jax.jit, static_argnums=1)
def logits(params, shape):
    return decoder.logits(params, decoder.forward(params, shape, jnp.asarray(TOKENS)))


def of_run(folder):
    """Returns the logits of a run's policy, computed in float32."""
    policy = load_policy(folder, load_resolved(folder / "config.yaml"))
    params = jax.tree.map(lambda x: x.astype(jnp.float32), policy.params)
    shape = dataclasses.replace(policy.model.decoder, dtype="float32")
    return logits(actor_critic.policy_decoder(params, policy.model), shape)


def assert_close(ours, theirs):
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()


def refused(*words):
    code, out, err = tiny_run.command("export", *map(str, words))
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err


@pytest.mark.parametrize("kind", ["lora", *(pytest.param(kind, marks=pytest.mark.slow) for kind in list(MODELS)[1:])])
def test_what_is_read_again_is_the_policy(kind, run, tmp_path):
    code, out, err = tiny_run.command("export", str(run(kind)), str(tmp_path / "new"))
    assert (code, err) == (0, "")
    assert f"policy of {run(kind)} after 7 iterations, float32" in out
    again = load_pretrained(tmp_path / "new")
    assert_close(logits(again.params, again.config.decoder), of_run(run(kind)))
    words = tokenizers.from_files(again.files, "new")
    assert (words.template is None) == (kind == "fresh")
    assert words.special_name(words.end_of_turn_id) == "<|end|>"
    assert json.loads(again.files["tokenizer_config.json"])["pad_token"] == "<|pad|>"
    if kind == "fresh":
        raw = again.config.raw
        assert raw["eos_token_id"] == words.end_of_turn_id
        assert raw["max_position_embeddings"] > 2 * 6  # the length of a conversation of the run
    before = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert "new: exists and is not an empty folder; give a new folder" in refused(run(kind), tmp_path / "new")
    assert {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()} == before


@pytest.mark.parametrize("kind", ["lora", "upper"])
def test_an_adapter_beside_its_base(kind, run, model, tmp_path):
    code, out, err = tiny_run.command("export", str(run(kind)), str(tmp_path / "new"), "--adapter")
    assert (code, err) == (0, "")
    assert f"adapter of {model}" in out
    base = load_pretrained(model, dtype="bfloat16" if kind == "lora" else "float32")
    shape = base.config.decoder
    adapter, size = load_adapter(tmp_path / "new", shape)
    assert (size.rank, size.alpha, set(size.targets)) == (2, 3.0, {"query", "down"})
    params = jax.tree.map(lambda x: x.astype(jnp.float32), base.params)
    assert_close(logits(lora.attach(params, adapter, size), shape), of_run(run(kind)))
    settings = json.loads((tmp_path / "new" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(model)
    assert (tmp_path / "new" / "tokenizer.json").read_bytes() == base.files["tokenizer.json"]


@pytest.mark.slow
def test_types_of_the_file(run, tmp_path):
    assert tiny_run.command("export", str(run("whole")), str(tmp_path / "new"), "--dtype", "bfloat16")[0] == 0
    assert load_pretrained(tmp_path / "new").config.raw["torch_dtype"] == "bfloat16"
    assert (tmp_path / "new" / "model.safetensors").stat().st_size < 2 * 480 * 16 * 2 * 2


def test_a_pretrained_model_is_written_too(model, tmp_path):
    (tmp_path / "new").mkdir()
    assert tiny_run.command("export", str(model), str(tmp_path / "new"))[0] == 0
    old, new = load_pretrained(model), load_pretrained(tmp_path / "new")
    chex.assert_trees_all_equal(old.params, new.params)
    assert (old.config, old.files) == (new.config, new.files)


def test_what_cannot_be_exported(run, model, tmp_path):
    new = tmp_path / "new"
    assert "without an adapter (model.lora.rank is 0); leave out --adapter" in refused(run("whole"), new, "--adapter")
    assert "an adapter is written in float32" in refused(run("lora"), new, "--adapter", "--dtype", "float16")
    assert "is no run, so that it has no adapter" in refused(model, new, "--adapter")
    assert "nowhere: no such folder" in refused("nowhere", new)
    assert "leave out --online" in refused(run("whole"), new, "--online")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.yaml").write_bytes((run("fresh") / "config.yaml").read_bytes())
    assert "holds no checkpoint yet" in refused(tmp_path / "empty", new)
    assert not new.exists()
