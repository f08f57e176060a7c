"""Runs to export, and checks that what is written is their policy."""

import dataclasses
import functools
import json

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
def runs(tmp_path_factory):
    """A model, and a function from a kind to the folder of a run of it."""
    home = tmp_path_factory.mktemp("runs")
    model = made_run.write_model(home / "tiny")
    return model, functools.cache(
        lambda kind: made_run.write_run(home / kind, MODELS[kind].replace("MODEL", str(model)))
    )


def exported(folder, target, *words):
    return tiny_run.done("export", str(folder), str(target), *words)


@functools.partial(jax.jit, static_argnums=1)
def _logits(params, shape):
    return decoder.logits(params, decoder.forward(params, shape, jnp.asarray(TOKENS)))


def _assert_policy_of(folder, params, shape):
    policy = load_policy(folder, load_resolved(folder / "config.yaml"))
    own = jax.tree.map(lambda x: x.astype(jnp.float32), policy.params)
    own_shape = dataclasses.replace(policy.model.decoder, dtype="float32")
    theirs = _logits(actor_critic.policy_decoder(own, policy.model), own_shape)
    assert np.abs(_logits(params, shape) - theirs).max() <= 1e-4 * np.abs(theirs).max()


def check_weights(folder, target):
    """What is written as a whole model is the policy; returns it as it is read again, and its tokenizer."""
    assert f"policy of {folder} after 7 iterations, float32" in exported(folder, target)
    again = load_pretrained(target)
    _assert_policy_of(folder, again.params, again.config.decoder)
    words = tokenizers.from_files(again.files, "new")
    assert words.special_name(words.end_of_turn_id) == "<|end|>"
    assert json.loads(again.files["tokenizer_config.json"])["pad_token"] == "<|pad|>"
    return again, words


def check_adapter(folder, model, target, dtype):
    """What is written as an adapter gives the policy beside its base, which the run holds as `dtype`."""
    assert f"adapter of {model}" in exported(folder, target, "--adapter")
    base = load_pretrained(model, dtype=dtype)
    shape = base.config.decoder
    adapter, size = load_adapter(target, shape)
    assert (size.rank, size.alpha, set(size.targets)) == (2, 3.0, {"query", "down"})
    params = jax.tree.map(lambda x: x.astype(jnp.float32), base.params)
    _assert_policy_of(folder, lora.attach(params, adapter, size), shape)
    settings = json.loads((target / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(model)
    assert (target / "tokenizer.json").read_bytes() == base.files["tokenizer.json"]
