"""Attention of whole rows against the plain form: values and gradients."""

import functools

import chex
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as Spec
from plain_attention import plain_attention, random_inputs, random_segments, value_and_gradients

from agentrl_jax.models import block_attention, row_attention


def compared(attention, inputs, *, segment_ids=None, **options):
    """Output and gradients of an attention function, and of the plain form, without those of padding."""

    def real(form, *x):
        mixed = form(*x, segment_ids=segment_ids, **options)
        return mixed if segment_ids is None else jnp.where(of_queries(segment_ids != 0, mixed), mixed, 0)

    forms = (functools.partial(real, form) for form in (attention, plain_attention))
    return jax.jit(lambda *x: tuple(value_and_gradients(form, *x) for form in forms))(*inputs)


def of_queries(positions, query):
    """What is known of all positions [B, S], for the entries of queries [B, C, H, Dh]."""
    return positions[:, -query.shape[1] :, None, None]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 8 queries in at most 3 lengths of keys, so that short rows take every path."""
    sizes = {"BLOCK": 8, "PACKED_BLOCK": 8, "EXTENTS": 3, "ALIGNED": 4, "SCORES_AT_ONCE": 2048}
    for name, value in sizes.items():
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


def ids_of(*rows):
    """Segment ids i32[B, 64] of rows with segments of the given lengths, and padding behind them."""
    numbers = [[number for number, length in enumerate(row, 1) for _ in range(length)] for row in rows]
    return jnp.array([row + [0] * (64 - len(row)) for row in numbers])


PACKED = ids_of([30, 20, 9], [64], [7, 8, 1, 16, 32], [])
"""Padding at an end, one long segment, borders inside of blocks and between them, and an empty bin."""


@pytest.mark.parametrize(
    ("window", "chunk", "dtype", "tolerance"),
    [(0, 64, "float32", 2e-5), (13, 61, "float32", 2e-5), (0, 64, "bfloat16", 0.02)],
    ids=str,
)
@pytest.mark.usefixtures("small_blocks")
def test_bins_equal_the_plain_form(window, chunk, dtype, tolerance):
    inputs = random_inputs(len(PACKED), chunk, 64, dtype=jnp.dtype(dtype))
    blocks, plain = compared(row_attention.attention, inputs, window=window, segment_ids=PACKED)
    chex.assert_trees_all_close(blocks, plain, atol=tolerance, rtol=tolerance)


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


@pytest.mark.usefixtures("small_blocks")
def test_each_device_reads_what_its_bins_need():
    """Inside `jax.shard_map` over rows; the gradient of a replicated parameter is the sum of those of the devices."""
    inputs = random_inputs(len(PACKED), 64, 64)

    def gradient(form, scale, segments, *inputs):
        def loss(scale):
            mixed = form(*(scale * x for x in inputs), segment_ids=segments)
            return jnp.sum(jnp.where(of_queries(segments != 0, mixed), jnp.sin(mixed), 0))

        return jax.value_and_grad(loss)(scale)

    def of_device(scale, *arrays):
        scale = jax.lax.pcast(scale, ("data",), to="varying")
        return jax.lax.psum(gradient(row_attention.attention, scale, *arrays), "data")

    mesh, rows = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,)), Spec("data")
    mapped = jax.shard_map(of_device, mesh=mesh, in_specs=(Spec(), *[rows] * 4), out_specs=Spec())
    arguments = (jnp.float32(1.5), PACKED, *inputs)
    plain = gradient(plain_attention, *arguments)
    chex.assert_trees_all_close(jax.jit(mapped)(*arguments), plain, rtol=1e-4, atol=1e-3)


def test_a_row_of_blocks_needs_no_square_of_scores():
    """The temporaries of the gradient grow by the length of the row, not by its square."""

    def temporaries(length):
        shapes = jax.eval_shape(lambda: random_inputs(1, length, length))
        gradient = jax.jit(functools.partial(value_and_gradients, row_attention.attention))
        return gradient.lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    square = 4 * 4 * 8192**2
    assert temporaries(8192) < square / 8
