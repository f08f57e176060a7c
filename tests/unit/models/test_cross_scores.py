"""Responses scored after one context against a plain pass over each whole sequence."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from slow_decoder import CONFIG, lively_params, slow_logits

from agentrl_jax.models import cached_decoder
from agentrl_jax.models.cross_scores import logprobs_after


def test_scores_are_those_of_the_whole_sequences():
    params, draw = lively_params(CONFIG), np.random.default_rng(0)
    context, length = draw.integers(0, CONFIG.vocab_size, 6), 4
    responses = draw.integers(0, CONFIG.vocab_size, (3, 5))
    lengths, temperature = np.array([5, 2, 0]), np.array([0.5, 0.0, 1.0])

    @functools.partial(jax.jit, static_argnums=1)
    def scores(params, config, *arrays):
        return logprobs_after(cached_decoder.prepare_for_decode(params, config), config, *arrays)

    found = scores(params, CONFIG, context, jnp.int32(length), responses, lengths, jnp.asarray(temperature))
    expected = np.zeros(responses.shape)
    for row, count in enumerate(lengths):
        tokens = np.concatenate([context[:length], responses[row, :count]])
        logits = slow_logits(params, CONFIG, tokens) / (temperature[row] or 1.0)
        logprob = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        for i in range(count):
            expected[row, i] = logprob[length + i - 1, responses[row, i]]
    np.testing.assert_allclose(found, expected, atol=3e-4)
