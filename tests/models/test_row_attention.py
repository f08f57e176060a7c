"""Attention of whole rows against the plain form: values and gradients."""

import functools

import chex
import jax
import pytest
from plain_attention import plain_attention, random_inputs, random_segments, value_and_gradients

from agentrl_jax.models import block_attention, row_attention


def compared(attention, inputs, **options):
    """Output and gradients of an attention function, and of the plain form."""
    forms = (functools.partial(form, **options) for form in (attention, plain_attention))
    return jax.jit(lambda *x: tuple(value_and_gradients(form, *x) for form in forms))(*inputs)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 8 queries in at most 3 lengths of keys, so that short rows take every path."""
    for name, value in {"BLOCK": 8, "EXTENTS": 3, "ALIGNED": 4, "SCORES_AT_ONCE": 2048}.items():
        monkeypatch.setattr(block_attention, name, value)


@pytest.mark.parametrize(
    ("chunk", "length", "window", "packed"),
    [
        (7, 7, 0, False),  # one block
        (21, 21, 5, True),  # three blocks, the last one shorter
        (53, 53, 0, False),  # loops, the last one padded
        (53, 60, 9, False),  # after a shared prefix
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


def test_a_row_of_blocks_needs_no_square_of_scores():
    """The temporaries of the gradient grow by the length of the row, not by its square."""

    def temporaries(length):
        shapes = jax.eval_shape(lambda: random_inputs(1, length, length))
        gradient = jax.jit(functools.partial(value_and_gradients, row_attention.attention))
        return gradient.lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    square = 4 * 4 * 8192**2
    assert temporaries(8192) < square / 8
