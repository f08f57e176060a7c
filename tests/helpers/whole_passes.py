"""Likelihoods of next tokens by a forward pass over all tokens before them."""

import jax
import jax.numpy as jnp

from agentrl_jax.models import decoder


def next_logprobs(params, shape, length):
    """Returns a function from at most `length` tokens to the log-probabilities of the next one."""

    @jax.jit
    def after(tokens, count):
        logits = decoder.logits(params, decoder.forward(params, shape, tokens[None]))
        return jax.nn.log_softmax(logits[0, count - 1])

    return lambda ids: after(jnp.array(ids + [0] * (length - len(ids))), len(ids))
