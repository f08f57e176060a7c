import dataclasses
import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_decoder import CONFIG, LENGTH, PARAMS, ROWS, TOKENS

from agentrl_jax.errors import BadValue
from agentrl_jax.models import cached_decoder, decoder
from agentrl_jax.models.kv_cache import init_cache, shared_prefix
from agentrl_jax.models.published import PUBLISHED

forward = jax.jit(decoder.forward, static_argnums=1)


@functools.partial(jax.jit, static_argnums=1)
def extend(params, config, *args):
    return cached_decoder.forward_with_cache(cached_decoder.prepare_for_decode(params, config), config, *args)


def test_declared_module_gives_the_same_logits():
    logits = decoder.Decoder(CONFIG).apply({"params": PARAMS}, TOKENS)
    np.testing.assert_array_equal(logits, decoder.logits(PARAMS, decoder.forward(PARAMS, CONFIG, TOKENS)))


def test_recomputation_changes_no_gradient():
    def loss(params, remat):
        return jnp.sum(jnp.square(decoder.forward(params, CONFIG, TOKENS, remat=remat)))

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    kept = gradient(PARAMS, "none")
    for remat in ("dots", "full"):
        chex.assert_trees_all_close(kept, gradient(PARAMS, remat), rtol=2e-5, atol=1e-5)


def test_first_tokens_in_common_are_computed_once_for_all():
    alike = TOKENS.at[:, :4].set(TOKENS[0, :4])
    weight = jnp.linspace(-1.0, 1.0, LENGTH)[:, None]

    def run(params, shared_prefix_len):
        hidden = decoder.forward(params, CONFIG, alike, shared_prefix_len=shared_prefix_len)
        return jnp.sum(weight * jnp.square(hidden)), hidden

    gradient = jax.jit(jax.grad(run, has_aux=True), static_argnums=1)
    whole, shared = (gradient(PARAMS, size) for size in (0, 4))
    chex.assert_trees_all_close(whole, shared, rtol=2e-5, atol=1e-4)


def test_packed_sequences_equal_rows_of_their_own():
    config = dataclasses.replace(CONFIG, windows=(3, 0))
    packed, lengths = TOKENS.reshape(1, -1)[:, :27], (LENGTH, 9, 7)
    segments = jnp.repeat(jnp.arange(3), jnp.array(lengths), total_repeat_length=27)[None]
    together = forward(PARAMS, config, packed, segment_ids=segments)[0]
    for start, length in zip((0, 11, 20), lengths):
        alone = forward(PARAMS, config, packed[:, start : start + LENGTH])[0, :length]
        np.testing.assert_allclose(together[start : start + length], alone, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(("changes", "apart"), [({"windows": (0, 4)}, True), ({"decode_dtype": "int8"}, False)])
def test_scanned_layers_and_the_last_token_alone_give_the_same_numbers(changes, apart):
    config = dataclasses.replace(CONFIG, **changes)
    params = PARAMS
    if apart:  # frozen layers are a stack before the others
        first, rest = ({name: x[some] for name, x in PARAMS["layers"].items()} for some in (slice(1), slice(1, None)))
        params = PARAMS | {"first_layers": first, "layers": rest}
    of_prefix, count = jnp.array([3, 2]), jnp.array([4, 0, 5])

    @functools.partial(jax.jit, static_argnums=1)
    def read(params, prepare):
        laid = prepare(params, config)
        cache = init_cache(config, 2, 3, block=3)
        _, cache = cached_decoder.forward_with_cache(laid, config, cache, TOKENS[:2, :3], jnp.zeros(2, int), of_prefix)
        prefix = shared_prefix(cache, of_prefix, jnp.array([1, 0, 1]))
        cache = init_cache(config, ROWS, LENGTH, block=3)
        start = of_prefix[prefix.row]
        arguments = (laid, config, cache, TOKENS[:, 3:8], start, count, prefix)
        hidden, cache = cached_decoder.forward_with_cache(*arguments)
        last = jnp.take_along_axis(hidden, jnp.maximum(count - 1, 0)[:, None, None], axis=1)
        only, same = cached_decoder.forward_with_cache(*arguments, only_last=True)
        logits = (decoder.logits(laid, jnp.where(count[:, None, None] > 0, x, 0)) for x in (last, only))
        return prefix, *zip(logits, (cache, same))

    results = [read(params, prepare) for prepare in (cached_decoder.prepare_for_decode, cached_decoder.prepare_stacked)]
    # Rounding may turn a value to the next integer.
    tolerance = 2e-2 if "decode_dtype" in changes else 2e-5
    (prefix, whole, last), (same_prefix, *scanned) = results
    for found, wanted in ((same_prefix, prefix), (last, whole), *((x, whole) for x in scanned)):
        chex.assert_trees_all_close(found, wanted, atol=tolerance, rtol=tolerance)


def test_bfloat16_activations_and_their_gradients_stay_close():
    def loss(params, dtype):
        hidden = decoder.forward(params, dataclasses.replace(CONFIG, dtype=dtype), TOKENS)
        logits = decoder.logits(params, hidden)
        assert (hidden.dtype, logits.dtype) == (dtype, jnp.float32)
        return jnp.sum(jnp.square(logits)), hidden

    gradient = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)

    def close(exact, rounded):
        assert exact.dtype == jnp.float32
        assert float(jnp.linalg.norm(rounded.astype(jnp.float32) - exact)) < 0.03 * float(jnp.linalg.norm(exact))

    exact, rounded = (gradient(PARAMS, dtype) for dtype in ("float32", "bfloat16"))
    chex.assert_trees_all_equal_dtypes(exact[0], rounded[0])
    jax.tree.map(close, exact, rounded)


@pytest.mark.parametrize("cache", ["", "float32"])
def test_bfloat16_steps_with_either_cache_stay_close_to_the_parallel_pass(cache):
    """An f32 cache holds the same keys and values, because they are rounded before they are written."""
    config = dataclasses.replace(CONFIG, dtype="bfloat16", cache_dtype=cache)
    zeros = jnp.zeros(ROWS, jnp.int32)
    hidden, filled = extend(PARAMS, config, init_cache(config, ROWS, LENGTH), TOKENS, zeros, zeros + LENGTH)
    expected = decoder.logits(PARAMS, forward(PARAMS, config, TOKENS))
    laid = cached_decoder.prepare_for_decode(PARAMS, config)
    for some in (hidden, hidden[:1, :4]):  # many and few rows use different matrix products
        np.testing.assert_allclose(decoder.logits(laid, some), expected[: some.shape[0], : some.shape[1]], atol=0.15)
    first = np.asarray(filled.blocks[0][0][0])
    assert first.dtype == (jnp.float32 if cache else jnp.bfloat16)
    np.testing.assert_array_equal(first, first.astype(jnp.bfloat16).astype(first.dtype))


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [({"head_dim": 3}, "head dimension", 3), ({"windows": (4,)}, "windows", 1), ({"num_kv_heads": 3}, "heads", 4)],
)
def test_impossible_shapes_are_refused(changes, key, value):
    with pytest.raises(BadValue) as refused:
        dataclasses.replace(CONFIG, **changes)
    assert (refused.value.key, refused.value.value) == (key, value)


PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_number_of_parameters_of_a_published_model(name):
    shapes = jax.eval_shape(lambda key: decoder.init_params(key, PUBLISHED[name]), jax.random.key(0))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == PARAMETERS[name]
