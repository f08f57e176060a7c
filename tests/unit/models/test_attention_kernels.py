"""Kernels of accelerators: on a CPU in Pallas' interpret mode or by JAX's own form, and cuDNN's on a GPU."""

import functools

import chex
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as Spec
from plain_attention import compared, plain_attention, random_inputs, random_segments, value_and_gradients

from agentrl_jax.errors import BadValue
from agentrl_jax.models import attention_kernels, row_attention

splash = functools.partial(attention_kernels.attend_splash, interpret=True)


@pytest.mark.nightly
def test_the_splash_kernel_equals_the_plain_form():
    inputs = random_inputs(2, 200, 300, head_dim=64)
    found, plain = compared(splash, inputs, window=90, segment_ids=random_segments(2, 300))
    chex.assert_trees_all_close(found, plain, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize(("chunk", "length", "window"), [(20, 20, 0), (12, 21, 5)])
def test_cudnn_is_asked_for_the_same_attention(monkeypatch, chunk, length, window):
    """With JAX's own implementation of that function, which takes the same arguments; cuDNN refuses odd lengths."""
    monkeypatch.setattr(attention_kernels, "CUDNN", "xla")
    lengths, ask = [], jax.nn.dot_product_attention

    def asked(query, key, value, **options):
        lengths.extend(x.shape[1] for x in (query, key, value))
        return ask(query, key, value, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", asked)

    def attend(*inputs, window, segment_ids):
        return attention_kernels.attend_cudnn(*inputs, window=window)

    found, plain = compared(attend, random_inputs(2, chunk, length), window=window)
    chex.assert_trees_all_close(found, plain, atol=2e-6, rtol=1e-5)
    assert lengths
    assert not any(size % 2 for size in lengths)


@pytest.mark.parametrize(
    ("name", "settings", "refused"),
    [
        ("splash", {"platform": "cpu"}, True), ("cudnn", {"platform": "tpu"}, True),
        ("cudnn", {"dtype": "float32"}, True), ("cudnn", {"head_dim": 136}, True), ("cudnn", {"head_dim": 60}, True),
        ("cudnn", {"packed": True}, True), ("cudnn", {"platform": "gpu", "head_dim": 128}, False),
        ("splash", {"platform": "tpu", "dtype": "float32"}, False),
        ("blocks", {"platform": "cpu", "dtype": "float32"}, False),
    ],
)  # fmt: skip
def test_what_does_not_serve_is_refused(name, settings, refused):
    reason = row_attention.refusal(name, **{"dtype": "bfloat16", "head_dim": 64} | settings)
    assert bool(reason) == refused


def test_an_explicit_choice_is_refused_where_it_is_used():
    with pytest.raises(BadValue) as refused:
        row_attention.attention(*random_inputs(1, 4, 4), implementation="cudnn")
    assert (refused.value.key, refused.value.value) == ("attention", "cudnn")


needs_gpu = pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs an NVIDIA GPU")


@needs_gpu
@pytest.mark.parametrize(
    ("chunk", "length", "window", "head_dim"),
    [(300, 300, 0, 64), (200, 333, 0, 64), (300, 300, 90, 64), (200, 300, 90, 128), (1024, 1024, 0, 128)],
)
def test_cudnn_equals_the_plain_form(chunk, length, window, head_dim):
    """Values and gradients, but for the rounding of bfloat16 operands in two products, forward or backward."""
    rounded = random_inputs(2, chunk, length, head_dim=head_dim, dtype=jnp.bfloat16)
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), rounded)

    def run(form, inputs):
        form = functools.partial(form, window=window)
        return jax.jit(functools.partial(value_and_gradients, form))(*inputs)

    with jax.default_matmul_precision("highest"):
        expected = run(plain_attention, exact)
    found = run(attention_kernels.attend_cudnn, rounded)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert float(jnp.linalg.norm(x.astype(jnp.float32) - y) / jnp.linalg.norm(y)) < 1.5e-2


@needs_gpu
@pytest.mark.parametrize(("length", "kernel"), [(2048, True), (128, False)])
def test_a_gpu_takes_cudnn_for_long_rows(length, kernel):
    inputs = random_inputs(1, length, length, head_dim=64, dtype=jnp.bfloat16)
    compiled = jax.jit(functools.partial(value_and_gradients, row_attention.attention)).lower(*inputs).compile()
    assert ("__cudnn$fmha" in compiled.as_text()) == kernel


@pytest.mark.nightly
def test_a_kernel_computes_the_heads_of_each_device():
    """Inside `jax.shard_map` over rows, with heads that the compiler shards: 2 key-value heads on 4 devices."""
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    inputs = random_inputs(2, 100, 100, head_dim=64)
    segments = random_segments(2, 100)

    def summed(scale, segments, *inputs):
        """The gradient of a replicated parameter, which is right only if the result counts as that of each device."""

        def loss(scale):
            return jnp.sum(jnp.sin(splash(*(scale * x for x in inputs), segment_ids=segments)))

        return jax.lax.psum(jax.value_and_grad(loss)(jax.lax.pcast(scale, ("data",), to="varying")), "data")

    rows = Spec("data")
    mapped = jax.shard_map(
        summed, mesh=mesh, in_specs=(Spec(), *[rows] * 4), out_specs=Spec(), axis_names={"data"}, check_vma=True
    )

    def plain(scale):
        return jnp.sum(jnp.sin(plain_attention(*(scale * x for x in inputs), segment_ids=segments)))

    expected = jax.value_and_grad(plain)(jnp.float32(1.5))
    chex.assert_trees_all_close(jax.jit(mapped)(jnp.float32(1.5), segments, *inputs), expected, rtol=1e-4, atol=1e-3)
