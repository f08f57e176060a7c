"""cuDNN's attention on an NVIDIA GPU beside the plain form; skipped where there is none."""

import functools

import jax
import jax.numpy as jnp
import pytest
from plain_attention import plain_attention, random_inputs, value_and_gradients

from agentrl_jax.models import attention_kernels, row_attention

ROUNDING = 1.5e-2
"""Relative error of bfloat16 operands in two products, forward or backward."""

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs an NVIDIA GPU")


def relative_error(found, expected):
    found, expected = (x.astype(jnp.float32) for x in (found, expected))
    return float(jnp.linalg.norm(found - expected) / jnp.linalg.norm(expected))


@pytest.mark.parametrize(
    ("chunk", "length", "window", "head_dim"),
    [(300, 300, 0, 64), (200, 333, 0, 64), (300, 300, 90, 64), (200, 300, 90, 128), (1024, 1024, 0, 128)],
)
def test_cudnn_equals_the_plain_form(chunk, length, window, head_dim):
    """Values and gradients, after a shared prefix, with windows, and with heads that share keys."""
    exact = random_inputs(2, chunk, length, head_dim=head_dim)
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), exact)
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), rounded)
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(functools.partial(value_and_gradients, functools.partial(plain_attention, window=window)))(
            *exact
        )
    found = jax.jit(
        functools.partial(value_and_gradients, functools.partial(attention_kernels.attend_cudnn, window=window))
    )(*rounded)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert relative_error(x, y) < ROUNDING


@pytest.mark.parametrize(("length", "kernel"), [(2048, True), (128, False)])
def test_a_gpu_takes_cudnn_for_long_rows(length, kernel):
    inputs = random_inputs(1, length, length, head_dim=64, dtype=jnp.bfloat16)
    compiled = jax.jit(functools.partial(value_and_gradients, row_attention.attention)).lower(*inputs).compile()
    assert ("__cudnn$fmha" in compiled.as_text()) == kernel
