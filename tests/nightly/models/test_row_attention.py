"""Attention of whole rows on several devices, in other shapes, and its memory."""

import functools

import chex
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as Spec
from plain_attention import (  # noqa: F401
    PACKED,
    compared,
    of_queries,
    plain_attention,
    random_inputs,
    random_segments,
    small_blocks,
    value_and_gradients,
)

from agentrl_jax.models import row_attention


@pytest.mark.parametrize(
    ("chunk", "length", "window", "packed"),
    [(7, 7, 0, False), (53, 53, 0, False)],
    ids=str,
)
@pytest.mark.usefixtures("small_blocks")
def test_blocks_equal_the_plain_form(chunk, length, window, packed):
    rows = 4
    segments = random_segments(rows, length) if packed else None
    inputs = random_inputs(rows, chunk, length)
    blocks, plain = compared(row_attention.attention, inputs, window=window, segment_ids=segments)
    chex.assert_trees_all_close(blocks, plain, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize(
    ("window", "chunk", "dtype", "tolerance"),
    [(0, 64, "float32", 2e-5), (0, 64, "bfloat16", 0.02)],
    ids=str,
)
@pytest.mark.usefixtures("small_blocks")
def test_bins_equal_the_plain_form(window, chunk, dtype, tolerance):
    inputs = random_inputs(len(PACKED), chunk, 64, dtype=jnp.dtype(dtype))
    blocks, plain = compared(row_attention.attention, inputs, window=window, segment_ids=PACKED)
    chex.assert_trees_all_close(blocks, plain, atol=tolerance, rtol=tolerance)


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
