"""Every kind of run is exported, and what is read again is its policy."""

import functools
import json

import made_run
import pytest
import tiny_run
from exported import MODELS, assert_close, logits, of_run, refused

from agentrl_jax.models.io.load import load_pretrained
from agentrl_jax.text import tokenizer as tokenizers


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return made_run.write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """Function from a kind of run to its folder."""
    home = tmp_path_factory.mktemp("runs")
    return functools.cache(lambda kind: made_run.write_run(home / kind, MODELS[kind].replace("MODEL", str(model))))


@pytest.mark.parametrize("kind", MODELS)
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


def test_types_of_the_file(run, tmp_path):
    assert tiny_run.command("export", str(run("whole")), str(tmp_path / "new"), "--dtype", "bfloat16")[0] == 0
    assert load_pretrained(tmp_path / "new").config.raw["torch_dtype"] == "bfloat16"
    assert (tmp_path / "new" / "model.safetensors").stat().st_size < 2 * 480 * 16 * 2 * 2
