"""Every model family against the logits of torch and transformers, in one pass, in prefill and in cached steps.

`parity/golden.npz` is written by `parity/make_golden.py`.
"""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.models import cached_decoder, decoder
from agentrl_jax.models.io.load import load_pretrained
from agentrl_jax.models.kv_cache import init_cache

HOME = Path(__file__).with_name("parity")
sys.path.insert(0, str(HOME))
import families  # noqa: E402

RELATIVE = 1e-4


@pytest.fixture(scope="module")
def golden():
    return np.load(HOME / "golden.npz")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Function from a family to (shape, parameters), read from a folder in Hugging Face's layout."""

    @functools.cache
    def load(family):
        found = load_pretrained(families.write_folder(family, tmp_path_factory.mktemp("models") / family))
        return found.config.decoder, found.params

    return load


def assert_close(ours, theirs):
    """Relative to the largest logit, because small logits are differences of large numbers."""
    assert np.abs(np.asarray(ours) - theirs).max() <= RELATIVE * np.abs(theirs).max()


@functools.partial(jax.jit, static_argnums=1)
def forward(params, shape, tokens):
    return decoder.logits(params, decoder.forward(params, shape, tokens))


@functools.partial(jax.jit, static_argnums=1)
def extend(params, shape, cache, tokens, start, count):
    apart = cached_decoder.prepare_for_decode(params, shape)
    hidden, cache = cached_decoder.forward_with_cache(apart, shape, cache, tokens, start, count)
    return decoder.logits(apart, hidden), cache


@pytest.mark.parametrize("family", families.FAMILIES)
def test_one_pass(family, model, golden):
    shape, params = model(family)
    assert_close(forward(params, shape, families.tokens(family)), golden[family])


@pytest.mark.parametrize("family", families.FAMILIES)
def test_ragged_prefill_and_cached_steps(family, model, golden):
    """Two rows at different positions: chunks of unequal length with padding, then token by token."""
    shape, params = model(family)
    tokens, expected = families.tokens(family), golden[family]
    cache = init_cache(shape, families.BATCH, families.LENGTH + 2)
    filled = np.zeros(families.BATCH, int)
    for counts in ([6, 3], [2, 6], *([[1, 1]] * 4), [0, 5], [6, 4], *([[1, 0]] * 3)):
        chunk = np.full((families.BATCH, 6), 7)
        for row, count in enumerate(counts):
            chunk[row, :count] = tokens[row, filled[row] : filled[row] + count]
        logits, cache = extend(params, shape, cache, jnp.asarray(chunk), jnp.asarray(filled), jnp.asarray(counts))
        for row, count in enumerate(counts):
            if count:
                assert_close(logits[row, :count], expected[row, filled[row] : filled[row] + count])
        filled = filled + np.array(counts)
    assert filled.min() > families.LENGTH - 4
