"""The benchmark of 8-bit rollouts scores a text as a forward pass does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from paths import ROOT

from agentrl_jax.models import decoder
from agentrl_jax.models.quantized import INTEGERS
from agentrl_jax.models.shape import DecoderConfig

SHAPE = DecoderConfig(vocab_size=50, num_layers=2, embed_dim=32, num_heads=2, num_kv_heads=1, mlp_width=64, head_dim=16)


def test_scores_are_those_of_a_forward_pass(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import quantization

    params = decoder.init_params(jax.random.key(0), SHAPE)
    tokens = jax.random.randint(jax.random.key(1), (12,), 0, SHAPE.vocab_size)
    hidden = decoder.forward(params, SHAPE, tokens[None])[0]
    logprobs = jax.nn.log_softmax(decoder.logits(params, hidden))[:-1]
    expected = jnp.take_along_axis(logprobs, tokens[1:, None], axis=1)[:, 0]
    for kind, fields in INTEGERS.items():
        found, likeliest = quantization.scores(
            params, dataclasses.replace(SHAPE, **dict.fromkeys(fields, "int8")), tokens
        )
        difference = np.abs(found - expected).max()
        assert difference < 1e-4 if kind == "none" else 1e-4 < difference < 0.2, kind
        if kind == "none":
            np.testing.assert_array_equal(likeliest, logprobs.argmax(axis=1))
