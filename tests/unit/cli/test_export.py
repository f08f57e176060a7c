"""`agentrl export`: other programs read the same policy as the run's, and no file is ever overwritten."""

import functools
import json

import chex
import jax
import jax.numpy as jnp
import made_run
import pytest
import tiny_run
from exported import MODELS, assert_close, logits, of_run, refused

from agentrl_jax.models import lora
from agentrl_jax.models.io.load import load_pretrained
from agentrl_jax.models.io.peft_files import load_adapter


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return made_run.write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """Function from a kind of run to its folder."""
    home = tmp_path_factory.mktemp("runs")
    return functools.cache(lambda kind: made_run.write_run(home / kind, MODELS[kind].replace("MODEL", str(model))))


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
