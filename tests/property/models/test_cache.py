"""A model that reads through its cache computes what a plain forward pass over each row does."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_decoder import CONFIG, LENGTH, ROWS, lively_params

from agentrl_jax.models import cached_decoder, decoder
from agentrl_jax.models.kv_cache import init_cache, shared_prefix

READ, SAID = 4, 3
"""Most tokens that are read at once, and of a response."""
OF_PREFIX, OWN = np.array([3, 2]), np.array([1, 0, 1])
"""Lengths of two prefixes, and the prefix of each row."""

counts = st.lists(st.integers(0, READ), min_size=ROWS, max_size=ROWS)
steps = st.lists(st.lists(st.booleans(), min_size=ROWS, max_size=ROWS), min_size=1, max_size=SAID)
actions = st.lists(st.tuples(st.just("read"), counts) | st.tuples(st.just("say"), steps), min_size=1, max_size=7)
"""Chunks of so many tokens of each row, and responses, which are sampled by the chosen rows at each step."""


@functools.cache
def programs(windows, block, first):
    """Compiled once: (empty cache and prefixes, read, decode, store) for a layout of the cache."""
    config = dataclasses.replace(CONFIG, windows=windows)
    params = lively_params(config)
    tokens = np.asarray(jax.random.randint(jax.random.key(1), (ROWS, LENGTH), 0, config.vocab_size)).copy()
    prefixes = np.stack([tokens[1, :3], tokens[0, :3]])
    for row, number in enumerate(OWN):
        tokens[row, : OF_PREFIX[number]] = prefixes[number, : OF_PREFIX[number]]
    laid = cached_decoder.prepare_for_decode(params, config)

    @jax.jit
    def start():
        cache, lengths = init_cache(config, 2, 3, block=3), jnp.asarray(OF_PREFIX)
        _, cache = cached_decoder.forward_with_cache(laid, config, cache, jnp.asarray(prefixes), 0 * lengths, lengths)
        empty = init_cache(config, ROWS, LENGTH, response=SAID, block=block, first=first)
        # What was there before must not be read.
        return jax.tree.map(lambda x: x + 7.0, empty), shared_prefix(cache, lengths, jnp.asarray(OWN))

    @jax.jit
    def read(cache, chunk, position, count, prefix):
        return cached_decoder.forward_with_cache(laid, config, cache, chunk, position, count, prefix)

    @functools.partial(jax.jit, static_argnames="lockstep")
    def decode(cache, token, position, length, active, prefix, lockstep):
        arguments = (cache, token, position, length, active, prefix)
        return cached_decoder.decode_with_cache(laid, config, *arguments, lockstep=lockstep)

    store = jax.jit(lambda cache, offset, length: cache.store_responses(offset, length))
    expected = np.asarray(jax.jit(decoder.forward, static_argnums=1)(params, config, jnp.asarray(tokens)))
    return tokens, expected, *start(), read, decode, store


@pytest.mark.parametrize(
    ("windows", "block", "first"), [((0, 4), 4, 2), pytest.param((), LENGTH, 0, marks=pytest.mark.nightly)], ids=str
)
@settings(max_examples=25)
@given(actions=actions)
def test_what_is_read_through_a_cache_equals_a_plain_forward_pass(windows, block, first, actions):
    """Ragged chunks with padding, responses token by token, their storage, and two prefixes of different lengths."""
    tokens, expected, cache, prefix, read, decode, store = programs(windows, block, first)
    before = OF_PREFIX[OWN]
    position = before.copy()

    def following(size):
        padded = np.pad(tokens, ((0, 0), (0, size)), constant_values=22)
        return np.stack([padded[row, at : at + size] for row, at in enumerate(position)])

    def check(hidden, count):
        for row, number in enumerate(count):
            wanted = expected[row, position[row] : position[row] + number]
            np.testing.assert_allclose(hidden[row, :number], wanted, atol=2e-5, rtol=2e-5)

    for kind, drawn in actions:
        if kind == "read":
            count = np.minimum(drawn, LENGTH - position)
            hidden, cache = read(cache, following(READ), position, count, prefix)
            check(hidden, count)
            position = position + count
            continue
        length = np.zeros(ROWS, int)
        for step in drawn:
            active = np.array(step) & (position < LENGTH)
            lockstep = len(set(length[active].tolist())) == 1
            old = jax.tree.leaves(cache)
            hidden, cache = decode(cache, following(1)[:, 0], position, length, active, prefix, lockstep=lockstep)
            for x, y in zip(old, jax.tree.leaves(cache)):  # that of other rows is unchanged
                np.testing.assert_array_equal(np.asarray(x)[~active], np.asarray(y)[~active])
            check(hidden[:, None], active.astype(int))
            position, length = position + active, length + active
        cache = store(cache, position - length - before, length)
