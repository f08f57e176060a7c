"""Attention of whole rows against the plain form: values and gradients."""

import functools

import chex
import jax.numpy as jnp
import pytest
from plain_attention import PACKED, compared, ids_of, random_inputs, random_segments, small_blocks  # noqa: F401

from agentrl_jax.models import block_attention, row_attention


@pytest.mark.parametrize(
    ("chunk", "length", "window", "packed"),
    [
        (21, 21, 5, True),  # three blocks, the last one shorter
        (53, 60, 9, False),  # loops, the last one padded, after a shared prefix
        (53, 53, 30, True),
    ],
    ids=str,
)
@pytest.mark.usefixtures("small_blocks")
def test_blocks_equal_the_plain_form(chunk, length, window, packed):
    rows = 4
    segments = random_segments(rows, length) if packed else None
    inputs = random_inputs(rows, chunk, length)
    blocks, plain = compared(row_attention.attention, inputs, window=window, segment_ids=segments)
    chex.assert_trees_all_close(blocks, plain, atol=2e-6, rtol=2e-5)


@pytest.mark.usefixtures("small_blocks")
def test_bins_equal_the_plain_form():
    blocks, plain = compared(row_attention.attention, random_inputs(len(PACKED), 61, 64), window=13, segment_ids=PACKED)
    chex.assert_trees_all_close(blocks, plain, atol=2e-5, rtol=2e-5)


@pytest.mark.usefixtures("small_blocks")
def test_rows_computed_together_read_what_one_of_them_sees():
    packed = functools.partial(block_attention._attend_packed, size=8, window=0)
    together, plain = compared(packed, random_inputs(len(PACKED), 64, 64), segment_ids=PACKED)
    chex.assert_trees_all_close(together, plain, atol=2e-5, rtol=2e-5)


@pytest.mark.usefixtures("small_blocks")
def test_keys_before_the_segments_of_a_block_are_not_read():
    """NaN in keys and values of an earlier segment reaches no later one; the plain form multiplies it by zero."""
    query, key, value = random_inputs(1, 24, 64)
    key, value = (x.at[:, :, :24].set(jnp.nan) for x in (key, value))
    blocks, plain = compared(row_attention.attention, (query, key, value), segment_ids=ids_of([32, 16, 16]))
    assert jnp.all(jnp.isnan(plain[0]))
    chex.assert_tree_all_finite(blocks)
    for gradient in blocks[1][1:]:
        assert not jnp.any(gradient[:, :, :32])
