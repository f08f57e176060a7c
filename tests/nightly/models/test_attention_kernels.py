"""Kernels of accelerators: other shapes in Pallas' interpret mode, and programs for a TPU that is not present."""

import functools
import importlib.util

import chex
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding
from plain_attention import plain_attention, random_inputs, random_segments, value_and_gradients

from agentrl_jax.models import attention_kernels, row_attention
from agentrl_jax.parallel.topology import described_devices


@pytest.mark.parametrize(("packed", "dtype", "atol"), [(False, "float32", 3e-6), (True, "bfloat16", 0.02)], ids=str)
def test_the_splash_kernel_equals_the_plain_form(packed, dtype, atol):
    splash = functools.partial(attention_kernels.attend_splash, interpret=True)
    inputs = random_inputs(2, 300, 300, head_dim=64, dtype=jnp.dtype(dtype))
    segments = random_segments(2, 300) if packed else None
    forms = (functools.partial(form, segment_ids=segments) for form in (splash, plain_attention))
    found, plain = jax.jit(lambda *x: tuple(value_and_gradients(form, *x) for form in forms))(*inputs)
    chex.assert_trees_all_close(found, plain, atol=atol, rtol=1e-5)


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
