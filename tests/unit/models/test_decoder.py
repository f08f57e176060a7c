"""The decoder against a slow NumPy decoder, and its cached steps against its parallel pass."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_decoder import CONFIG, LENGTH, ROWS, lively_params, slow_logits

from agentrl_jax.models import cached_decoder, decoder
from agentrl_jax.models.kv_cache import Opening, init_cache, shared_prefix


@pytest.fixture(scope="module")
def params():
    return lively_params(CONFIG)


@pytest.fixture(scope="module")
def tokens():
    return jax.random.randint(jax.random.key(1), (ROWS, LENGTH), 0, CONFIG.vocab_size)


forward = jax.jit(decoder.forward, static_argnums=1, static_argnames=("remat", "shared_prefix_len"))
"""Compiled once per shape; without jit, every call would compile its loop over the layers."""


@pytest.fixture(scope="module")
def extend():
    def run(params, config, *args):
        return cached_decoder.forward_with_cache(cached_decoder.prepare_for_decode(params, config), config, *args)

    return jax.jit(run, static_argnums=1)


@pytest.mark.parametrize(("tied", "kv_heads"), [(False, 1), (True, 2)])
def test_forward_equals_the_slow_decoder(tied, kv_heads, tokens):
    config = dataclasses.replace(CONFIG, tied_embeddings=tied, num_kv_heads=kv_heads)
    params = lively_params(config, seed=3)
    fast = decoder.logits(params, forward(params, config, tokens))
    assert fast.dtype == jnp.float32
    slow = np.stack([slow_logits(params, config, row) for row in np.asarray(tokens)])
    np.testing.assert_allclose(fast, slow, atol=2e-4)


def test_declared_module_gives_the_same_logits(params, tokens):
    logits = decoder.Decoder(CONFIG).apply({"params": params}, tokens)
    np.testing.assert_array_equal(logits, decoder.logits(params, decoder.forward(params, CONFIG, tokens)))


@pytest.mark.parametrize("remat", ["dots", "full"])
def test_recomputation_changes_no_gradient(params, tokens, remat):
    def loss(params, remat):
        return jnp.sum(jnp.square(forward(params, CONFIG, tokens, remat=remat)))

    kept, again = (jax.grad(loss)(params, remat) for remat in ("none", remat))
    chex.assert_trees_all_close(kept, again, rtol=2e-5, atol=1e-5)


def test_first_tokens_in_common_are_computed_once_for_all(params, tokens):
    """Outputs and gradients of a batch whose rows have a common prefix."""
    alike = tokens.at[:, :4].set(tokens[0, :4])
    weight = jnp.linspace(-1.0, 1.0, LENGTH)[:, None]

    def run(params, shared_prefix_len):
        hidden = forward(params, CONFIG, alike, shared_prefix_len=shared_prefix_len)
        return jnp.sum(weight * jnp.square(hidden)), hidden

    whole, shared = (jax.grad(run, has_aux=True)(params, size) for size in (0, 4))
    chex.assert_trees_all_close(whole, shared, rtol=2e-5, atol=1e-4)


def test_packed_sequences_equal_rows_of_their_own(params, tokens):
    """With layers of different windows."""
    config = dataclasses.replace(CONFIG, windows=(3, 0))
    packed, lengths = tokens.reshape(1, -1)[:, :27], (LENGTH, 9, 7)
    segments = jnp.repeat(jnp.arange(3), jnp.array(lengths), total_repeat_length=27)[None]
    together = forward(params, config, packed, segment_ids=segments)[0]
    for start, length in zip((0, 11, 20), lengths):
        alone = forward(params, config, packed[:, start : start + LENGTH])[0, :length]
        np.testing.assert_allclose(together[start : start + length], alone, atol=2e-5, rtol=2e-5)


def test_what_comes_later_changes_nothing_before(params, tokens):
    changed = tokens.at[:, 7:].set(0)
    before, after = (forward(params, CONFIG, x) for x in (tokens, changed))
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert not np.allclose(before[:, 7:], after[:, 7:])


@pytest.mark.parametrize("prepare", [cached_decoder.prepare_for_decode, cached_decoder.prepare_stacked])
def test_the_state_of_the_last_token_alone_comes_with_the_same_cache(params, tokens, prepare):
    config = dataclasses.replace(CONFIG, windows=(0, 4))
    laid, start, count = prepare(params, config), jnp.array([2, 0, 1]), jnp.array([3, 5, 1])
    cache = jax.tree.map(lambda x: x + 0.5, init_cache(config, ROWS, LENGTH, block=4))
    args = laid, config, cache, tokens[:, :5], start, count
    read = jax.jit(cached_decoder.forward_with_cache, static_argnums=1, static_argnames="only_last")
    hidden, written = read(*args)
    last, same = read(*args, only_last=True)
    expected = hidden[jnp.arange(ROWS), count - 1][:, None]
    np.testing.assert_allclose(last, expected, atol=2e-5, rtol=2e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5, rtol=2e-5), written, same)


def test_rows_and_positions_that_are_not_written_keep_every_bit(params, tokens, extend):
    def noise(x):
        return jax.random.normal(jax.random.key(4), x.shape)

    cache = jax.tree.map(noise, init_cache(CONFIG, ROWS, LENGTH, response=3, block=LENGTH))
    start, count = jnp.array([2, 9, 0]), jnp.array([3, 0, 1])
    _, after = extend(params, CONFIG, cache, tokens[:, :4], start, count)
    written = np.zeros((ROWS, LENGTH), bool)
    written[0, 2:5] = written[2, 0] = True
    for old, new in zip(jax.tree.leaves(cache.blocks), jax.tree.leaves(after.blocks)):
        changed = np.any(np.asarray(old != new), axis=(1, 3))
        np.testing.assert_array_equal(changed, written)
    chex.assert_trees_all_equal(cache.response, after.response)


@pytest.mark.parametrize(("changes", "apart"), [({"windows": (0, 4)}, True), ({"decode_dtype": "int8"}, False)])
def test_scanned_layers_give_the_numbers_of_unrolled_ones(params, tokens, changes, apart):
    config = dataclasses.replace(CONFIG, **changes)
    if apart:  # frozen layers are a stack before the others
        first, rest = (
            jax.tree.map(lambda x, some=some: x[some], params["layers"]) for some in (slice(1), slice(1, None))
        )
        params = params | {"first_layers": first, "layers": rest}
    of_prefix, count = jnp.array([3, 2]), jnp.array([4, 0, 5])

    @functools.partial(jax.jit, static_argnums=1)
    def read(params, prepare):
        laid = prepare(params, config)
        cache = init_cache(config, 2, 3, block=3)
        _, cache = cached_decoder.forward_with_cache(laid, config, cache, tokens[:2, :3], jnp.zeros(2, int), of_prefix)
        prefix = shared_prefix(cache, of_prefix, jnp.array([1, 0, 1]))
        cache = init_cache(config, ROWS, LENGTH, block=3)
        start = of_prefix[prefix.row]
        hidden, cache = cached_decoder.forward_with_cache(laid, config, cache, tokens[:, 3:8], start, count, prefix)
        last = jnp.take_along_axis(hidden, jnp.maximum(count - 1, 0)[:, None, None], axis=1)
        return decoder.logits(laid, jnp.where(count[:, None, None] > 0, last, 0)), prefix, cache

    unrolled, scanned = (
        read(params, prepare) for prepare in (cached_decoder.prepare_for_decode, cached_decoder.prepare_stacked)
    )
    # Rounding may turn a value to the next integer.
    tolerance = 2e-2 if changes.get("dtype") or changes.get("decode_dtype") else 1e-5
    close = functools.partial(np.testing.assert_allclose, atol=tolerance, rtol=tolerance)
    jax.tree.map(lambda x, y: close(np.asarray(x, np.float32), np.asarray(y, np.float32)), unrolled, scanned)


def test_stacked_parameters_refuse_an_opening(params, tokens):
    opening = Opening((), jnp.zeros(ROWS, jnp.int32))
    cache = init_cache(CONFIG, ROWS, LENGTH).replace(opening=opening)
    stacked = cached_decoder.prepare_stacked(params, CONFIG)
    zeros = jnp.zeros(ROWS, jnp.int32)
    with pytest.raises(ValueError, match="no cache with an opening"):
        cached_decoder.forward_with_cache(stacked, CONFIG, cache, tokens[:, :2], zeros, zeros + 2)


def test_bfloat16_activations_stay_close(params, tokens):
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    hidden = forward(params, config, tokens)
    assert hidden.dtype == jnp.bfloat16
    assert decoder.logits(params, hidden).dtype == jnp.float32
    assert init_cache(config, 1, 2).blocks[0][0][0].dtype == jnp.bfloat16
    exact = np.asarray(forward(params, CONFIG, tokens))
    assert np.mean(np.abs(np.asarray(hidden, np.float32) - exact)) < 0.05 * np.mean(np.abs(exact))


def test_gradients_of_bfloat16_activations_stay_close(params, tokens):
    def loss(params, dtype):
        hidden = decoder.forward(params, dataclasses.replace(CONFIG, dtype=dtype), tokens)
        return jnp.sum(jnp.square(decoder.logits(params, hidden)))

    def close(exact, rounded):
        assert rounded.dtype == jnp.float32
        assert float(jnp.linalg.norm(rounded - exact)) < 0.03 * float(jnp.linalg.norm(exact))

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    jax.tree.map(close, gradient(params, "float32"), gradient(params, "bfloat16"))


@pytest.mark.parametrize("cache", ["", "float32"])
def test_bfloat16_steps_with_either_cache_stay_close_to_the_parallel_pass(params, tokens, extend, cache):
    """An f32 cache holds the same keys and values, because they are rounded before they are written."""
    config = dataclasses.replace(CONFIG, dtype="bfloat16", cache_dtype=cache)
    zeros = jnp.zeros(ROWS, jnp.int32)
    hidden, filled = extend(params, config, init_cache(config, ROWS, LENGTH), tokens, zeros, zeros + LENGTH)
    expected = decoder.logits(params, forward(params, config, tokens))
    laid = cached_decoder.prepare_for_decode(params, config)
    for some in (hidden, hidden[:1, :4]):  # many and few rows use different matrix products
        np.testing.assert_allclose(decoder.logits(laid, some), expected[: some.shape[0], : some.shape[1]], atol=0.15)
    first = np.asarray(filled.blocks[0][0][0])
    assert first.dtype == (jnp.float32 if cache else jnp.bfloat16)
    np.testing.assert_array_equal(first, first.astype(jnp.bfloat16).astype(first.dtype))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_dim": 3}, "head dimension 3 must be even"),
        ({"windows": (4,)}, "1 windows for 2 layers"),
        ({"num_kv_heads": 3}, "4 heads cannot be shared evenly by 3"),
    ],
)
def test_impossible_shapes_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(CONFIG, **changes)
