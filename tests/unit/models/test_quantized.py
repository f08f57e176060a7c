import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.models import cached_decoder, decoder
from agentrl_jax.models.kv_cache import init_cache
from agentrl_jax.models.quantized import Quantized, quantize
from agentrl_jax.models.shape import DecoderConfig

CONFIG = DecoderConfig(
    vocab_size=31, num_layers=1, embed_dim=16, num_heads=4, num_kv_heads=2, mlp_width=24, head_dim=4, qkv_bias=True
)
ROWS, READ = 3, 7
TOKENS = jax.random.randint(jax.random.key(2), (ROWS, READ + 1), 0, CONFIG.vocab_size)


def test_the_nearest_integers_are_taken():
    x = jax.random.normal(jax.random.key(0), (5, 8)).at[2].set(0.0)
    kept = quantize(x, axis=1)
    assert (kept.values.dtype, kept.scale.shape) == (jnp.int8, (5, 1))
    np.testing.assert_allclose(kept.scale[:, 0] * 127, jnp.where(jnp.arange(5) == 2, 1.0, jnp.max(jnp.abs(x), axis=1)))
    assert np.all(np.abs(kept.dequantized(jnp.float32) - x) <= 0.5001 * kept.scale)
    np.testing.assert_array_equal(quantize(kept.dequantized(jnp.float32), axis=1).values, kept.values)


@functools.partial(jax.jit, static_argnums=1)
def logits_after(params, config):
    params = cached_decoder.prepare_for_decode(params, config)
    zeros = jnp.zeros(ROWS, jnp.int32)
    cache = init_cache(config, ROWS, READ, response=1, block=4)
    read, cache = cached_decoder.forward_with_cache(params, config, cache, TOKENS[:, :READ], zeros, zeros + READ)
    decoded, _ = cached_decoder.decode_with_cache(
        params, config, cache, TOKENS[:, READ], zeros + READ, zeros, jnp.ones(ROWS, bool)
    )
    return decoder.logits(params, jnp.concatenate([read, decoded[:, None]], axis=1))


@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_integer_weights_are_those_numbers(tied):
    config = dataclasses.replace(CONFIG, tied_embeddings=tied)
    params = decoder.init_params(jax.random.key(1), config)

    def rounded(path, leaf):
        """Matrices of layers have a scale for each output, the embedding for each token."""
        name = path[-1].key
        if name.endswith(("_norm", "_bias")):
            return leaf
        return quantize(leaf, axis=1 if name == "embedding" else -2).dequantized(jnp.float32)

    wanted = logits_after(jax.tree_util.tree_map_with_path(rounded, params), config)
    found = logits_after(params, dataclasses.replace(config, decode_dtype="int8"))
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert np.max(np.abs(found - logits_after(params, config))) > 1e-3


def test_an_integer_cache_changes_little():
    params = decoder.init_params(jax.random.key(1), CONFIG)
    config = dataclasses.replace(CONFIG, cache_dtype="int8")
    assert isinstance(init_cache(config, 1, 4).blocks[0][0][0], Quantized)
    wanted, found = (logits_after(params, one) for one in (CONFIG, config))
    assert 1e-4 < np.max(np.abs(found - wanted)) < 0.1
