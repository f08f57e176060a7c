"""Kinds of runs to export, and how what is read again is compared with them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import tiny_run

from agentrl_jax.config import load_resolved
from agentrl_jax.models import actor_critic, decoder
from agentrl_jax.setup.policy import load_policy

MODELS = {
    "lora": "pretrained: MODEL, precision: bfloat16, lora: {rank: 2, alpha: 3, targets: [query, down]}",
    "upper": "pretrained: MODEL, frozen_layers: 1, lora: {rank: 2, alpha: 3, targets: [query, down]}",
    "frozen": "pretrained: MODEL, frozen_layers: 1",
    "whole": "pretrained: MODEL, critic: separate",
    "fresh": "layers: 2, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16, tied_embeddings: false",
}


TOKENS = np.random.default_rng(0).integers(20, 300, (2, 24))


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
