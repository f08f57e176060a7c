"""Attention over the filled part of a cache, block by block, against attention over all of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.models import layers

ROWS, CHUNK, HEADS, KV_HEADS, HEAD_DIM = 3, 2, 4, 2, 8


@pytest.fixture(scope="module")
def small_blocks():
    """Function (length, window) -> attention of a chunk that ends at each row's position, in blocks of 4."""
    default, layers.BLOCK = layers.BLOCK, 4

    def run(length, window=0):
        keys = jax.random.split(jax.random.key(length), 3)
        query = jax.random.normal(keys[0], (ROWS, CHUNK, HEADS, HEAD_DIM))
        key, value = (jax.random.normal(k, (ROWS, KV_HEADS, length, HEAD_DIM)) for k in keys[1:])

        def attend(of, ends, filled):
            positions = jnp.asarray(ends)[:, None] - CHUNK + jnp.arange(CHUNK)
            seen = layers.visible(positions, length) & layers.within(jnp.int32(window), positions, length)
            arguments = query, key, value, seen
            return of(*arguments, jnp.int32(filled)) if of is layers.attend_filled else of(*arguments)

        return attend

    yield run
    layers.BLOCK = default


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("length", [3, 8, 14])
def test_blocks_give_what_the_whole_gives(small_blocks, length, window):
    """Caches of less than a block, of whole blocks and with a last block that overlaps the one before."""
    attend = small_blocks(length, window)
    for ends in ([2, 2, 2], [2, 3, 3], [length, 2, length - 1], [length] * 3):
        got = attend(layers.attend_filled, ends, max(ends))
        np.testing.assert_allclose(got, attend(layers.attend, ends, None), rtol=1e-5, atol=1e-6)


def test_longer_neighbours_change_no_bit(small_blocks):
    """Blocks where a row sees nothing add exact zeros, whatever they hold."""
    attend = small_blocks(14)
    short = attend(layers.attend_filled, [3, 4, 2], 4)
    for filled in (5, 9, 14):
        np.testing.assert_array_equal(attend(layers.attend_filled, [3, 4, 2], filled), short)


def test_a_batch_in_which_nothing_is_filled_has_no_nan(small_blocks):
    """A rollout may ask for no row at all; what comes out means nothing but must be finite."""
    assert np.isfinite(small_blocks(8)(layers.attend_filled, [2, 2, 2], 0)).all()
