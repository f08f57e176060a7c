"""Whole responses through the compiled automaton."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.text import grammar


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0))
def follow(table, tokens, length):
    """Parses whole responses: tokens i32[B, L], of which the first `length` i32[B] are valid."""

    def step(state, slot):
        token, index = slot
        return grammar.advance(table, state, jnp.where(index < length, token, -1)), None

    steps = (tokens, np.arange(tokens.shape[0], dtype=np.int32))
    return grammar.result(table, jax.lax.scan(step, grammar.start(table), steps)[0])
