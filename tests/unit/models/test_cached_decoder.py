"""Two turns of reading and decoding through the cache against a slow pass over the whole sequences."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_decoder import CONFIG, lively_params, slow_logits

from agentrl_jax.models import cached_decoder, decoder
from agentrl_jax.models.kv_cache import init_cache, shared_prefix

READ, WRITTEN = np.array([[3, 1, 4], [2, 3, 1]]), np.array([[2, 3, 1], [3, 1, 2]])
"""Tokens of each row that are read before, and written in, each of the two turns."""
PREFIX = 2


@functools.partial(jax.jit, static_argnums=1)
def read(params, config, cache, tokens, start, count, prefix):
    hidden, cache = cached_decoder.forward_with_cache(params, config, cache, tokens, start, count, prefix)
    return decoder.logits(params, hidden), cache


@functools.partial(jax.jit, static_argnums=1, static_argnames="lockstep")
def step(params, config, cache, token, position, length, active, prefix, *, lockstep):
    hidden, cache = cached_decoder.decode_with_cache(
        params, config, cache, token, position, length, active, prefix, lockstep=lockstep
    )
    return decoder.logits(params, hidden), cache


@pytest.mark.parametrize("lockstep", [False, True])
def test_turns_through_the_cache_are_those_of_the_whole_sequence(lockstep):
    config = dataclasses.replace(CONFIG, dtype="float32")
    params = lively_params(config)
    prepared = cached_decoder.prepare_for_decode(params, config)
    rows, most = len(READ[0]), WRITTEN.max()
    draw = np.random.default_rng(0)
    context = np.broadcast_to(draw.integers(0, config.vocab_size, PREFIX), (rows, PREFIX))
    zeros = jnp.zeros(1, jnp.int32)
    one = init_cache(config, 1, PREFIX, block=PREFIX)
    _, one = read(prepared, config, one, context[:1], zeros, zeros + PREFIX, None)
    prefix = shared_prefix(one, zeros + PREFIX, jnp.zeros(rows, jnp.int32))
    cache = init_cache(config, rows, 16, response=int(most), block=6)
    sequences, found = [list(row) for row in context], [[None] * PREFIX for _ in range(rows)]
    position = np.full(rows, PREFIX)
    for reads, writes in zip(READ, WRITTEN):
        tokens = draw.integers(0, config.vocab_size, (rows, READ.max()))
        logits, cache = read(prepared, config, cache, tokens, position, reads, prefix)
        for row in range(rows):
            sequences[row] += tokens[row, : reads[row]].tolist()
            found[row] += list(np.asarray(logits[row, : reads[row]]))
        position = position + reads
        length = np.zeros(rows, int)
        for number in range(most):
            token, active = draw.integers(0, config.vocab_size, rows), number < writes
            logits, cache = step(prepared, config, cache, token, position, length, active, prefix, lockstep=lockstep)
            for row in np.flatnonzero(active):
                sequences[row].append(int(token[row]))
                found[row].append(np.asarray(logits[row]))
            position, length = position + active, length + active
        cache = cache.store_responses(jnp.asarray(position - length - PREFIX), jnp.asarray(length))
    for row, sequence in enumerate(sequences):
        expected = slow_logits(params, config, np.array(sequence))
        np.testing.assert_allclose(np.stack(found[row][PREFIX:]), expected[PREFIX:], atol=5e-4)
