import functools
import importlib.util

import chex
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, SingleDeviceSharding
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
from spread_attention import check_branches, check_positions

from agentrl_jax.models import row_attention
from agentrl_jax.parallel.topology import described_devices


@pytest.mark.usefixtures("small_blocks")
def test_bins_in_bfloat16_equal_the_plain_form():
    inputs = random_inputs(len(PACKED), 64, 64, dtype=jnp.bfloat16)
    blocks, plain = compared(row_attention.attention, inputs, segment_ids=PACKED)
    chex.assert_trees_all_close(blocks, plain, atol=0.02, rtol=0.02)


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
    shapes = jax.eval_shape(lambda: random_inputs(1, 8192, 8192))
    gradient = jax.jit(functools.partial(value_and_gradients, row_attention.attention))
    square = 4 * 4 * 8192**2
    assert gradient.lower(*shapes).compile().memory_analysis().temp_size_in_bytes < square / 8


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler, libtpu")
@pytest.mark.parametrize(
    ("head_dim", "dtype", "window", "packed"), [(64, "bfloat16", 0, True), (128, "float32", 300, False)], ids=str
)
def test_a_program_for_a_tpu_has_the_splash_kernel(head_dim, dtype, window, packed):
    device = SingleDeviceSharding(described_devices("v5e:4x4")[0][0])
    shapes = jax.eval_shape(lambda: random_inputs(1, 600, 700, head_dim=head_dim, dtype=jnp.dtype(dtype)))
    arrays = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), shapes)
    segments = random_segments(1, 700) if packed else None
    attention = functools.partial(row_attention.attention, window=window, segment_ids=segments)
    compiled = jax.jit(functools.partial(value_and_gradients, attention)).lower(*arrays).compile()
    assert compiled.as_text().count("tpu_custom_call") >= 3  # forward, and gradients of queries, of keys and values


@pytest.mark.parametrize(("window", "packed"), [(0, False), (13, True)])
def test_positions_on_four_devices_equal_the_plain_form(monkeypatch, window, packed):
    check_positions(monkeypatch, window=window, packed=packed)


@pytest.mark.parametrize(("heads", "kv_heads", "implementation"), [(6, 3, "blocks"), (2, 1, "splash")])
def test_no_device_waits_in_its_branch_for_another(monkeypatch, heads, kv_heads, implementation):
    check_branches(monkeypatch, heads, kv_heads, implementation)
