"""Attention kernels of accelerators: cuDNN's on GPUs, and splash attention, written in Pallas, on TPUs.

They keep no scores in memory (flash attention, Dao 2023). Arguments as in `row_attention.attention`; shapes as in
`attention`, where the queries are those of the last `C` of `S` positions.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.extend
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Int

from agentrl_jax.models.attention import Keys, Query
from agentrl_jax.models.manual_axes import as_varying, varying

Kernel = Callable[..., Query]
"""A function of a query, keys, values and, where they are given, segment ids."""

CUDNN: Literal["cudnn", "xla"] = "cudnn"
"""The implementation that `attend_cudnn` asks JAX for; tests on CPUs set it to "xla", which has the same arguments."""


def attend_splash(
    query: Query,
    key: Keys,
    value: Keys,
    *,
    window: int = 0,
    segment_ids: Int[Array, "B S"] | None = None,
    interpret: bool = False,
) -> Query:
    """Attention by JAX's splash kernel for TPUs; `interpret` runs it on any platform, slowly, for tests."""
    chunk, length = query.shape[1], key.shape[2]
    of_heads = functools.partial(_splash_kernel, chunk, length, window, interpret)

    def kernel(query, key, value, *ids):
        run, (queries, keys) = of_heads(query.shape[2])
        query = jnp.pad(query * query.shape[-1] ** -0.5, ((0, 0), (0, queries - chunk), (0, 0), (0, 0)))
        key, value = (jnp.pad(x, ((0, 0), (0, 0), (0, keys - length), (0, 0))) for x in (key, value))
        segments = None
        if ids:
            # Padding belongs to the last segment: a query that sees no key would make gradients NaN.
            ends = ((0, 0), (0, queries - chunk)), ((0, 0), (0, keys - length))
            of_queries, of_keys = (jnp.pad(x, end, "edge") for x, end in zip((ids[0][:, -chunk:], ids[0]), ends))
            segments = splash_attention_kernel.SegmentIds(of_queries, of_keys)
        return jax.vmap(run)(query.swapaxes(1, 2), key, value, segments).swapaxes(1, 2)[:, :chunk]

    return _run(kernel, query, key, value, segment_ids)


def attend_cudnn(query: Query, key: Keys, value: Keys, *, window: int = 0) -> Query:
    """Attention by cuDNN on NVIDIA GPUs, in bfloat16."""
    # cuDNN's causal mask starts at the first key, so earlier positions get queries too: of zeros.
    before = key.shape[2] - query.shape[1]

    def kernel(query, key, value):
        mixed = jax.nn.dot_product_attention(
            jnp.pad(query, ((0, 0), (before, 0), (0, 0), (0, 0))),
            key.swapaxes(1, 2),
            value.swapaxes(1, 2),
            is_causal=True,
            local_window_size=(window - 1, 0) if window else None,
            implementation=CUDNN,
        )
        return mixed[:, before:]

    return _run(kernel, query, key, value, None)


@functools.lru_cache(maxsize=64)
def _splash_kernel(
    chunk: int, length: int, window: int, interpret: bool, heads: int
) -> tuple[Callable[..., jax.Array], tuple[int, int]]:
    """The kernel for one row, and the numbers of queries and keys that it computes, padding included."""
    blocks = _block_size(chunk), _block_size(length)
    padded = chunk + -chunk % blocks[0], length + -length % blocks[1]
    if window:
        mask: Any = splash_attention_mask.LocalMask(padded, (window - 1, 0), length - chunk)
    else:
        mask = splash_attention_mask.CausalMask(padded, length - chunk)
    sizes = splash_attention_kernel.BlockSizes(*blocks, None, *blocks, None, *blocks)
    with jax.ensure_compile_time_eval():
        kernel = splash_attention_kernel.make_splash_mha_single_device(
            splash_attention_mask.MultiHeadMask([mask] * heads), block_sizes=sizes, interpret=interpret
        )
    return kernel, padded


def _block_size(length: int) -> int:
    """The largest block that pads a length by at most an eighth."""
    return next((size for size in (512, 256) if -length % size <= length // 8), 128)


def _run(kernel: Kernel, query: Query, key: Keys, value: Keys, segment_ids: Int[Array, "B S"] | None) -> Query:
    """A kernel with its gradient, for arrays of which the compiler may shard the heads, also inside `jax.shard_map`."""
    ids = () if segment_ids is None else (segment_ids,)
    over_axes = frozenset[str]().union(*(varying(x) for x in (query, key, value)))
    query, key, value = (as_varying(x, sorted(over_axes)) for x in (query, key, value))
    over, copies = _head_axes(query.shape[2], key.shape[1])
    key, value = (jnp.repeat(x, copies, axis=1) if copies > 1 else x for x in (key, value))
    of_query, of_key = Spec(None, None, over), Spec(None, over)
    specs = (of_query, of_key, of_key, *[Spec()] * len(ids))

    def backward(query, key, value, *rest):
        *ids, cotangent = rest
        return jax.vjp(lambda *x: kernel(*x, *ids), query, key, value)[1](cotangent)

    @jax.custom_vjp
    def run(query, key, value, ids):
        (mixed,) = _call(lambda *x: (kernel(*x),), (query, key, value, *ids), specs, (of_query,), over_axes)
        return mixed

    def run_backward(residuals, cotangent):
        query, key, value, ids = residuals
        arguments = (query, key, value, *ids, cotangent)
        return (*_call(backward, arguments, (*specs, of_query), specs[:3], over_axes), tuple(None for _ in ids))

    run.defvjp(lambda *x: (run(*x), x), run_backward)
    return run(query, key, value, ids)


def _call(
    function: Callable[..., tuple[jax.Array, ...]],
    arguments: Sequence[jax.Array],
    in_specs: Sequence[Spec],
    out_specs: Sequence[Spec],
    over_axes: frozenset[str],
) -> tuple[jax.Array, ...]:
    """Calls a function of kernels; inside `jax.shard_map` its results are marked as varying over `over_axes`.

    The compiler cannot divide a kernel among devices, so all axes that are left to it are mapped here. The library's
    kernels do not say over which axes their results vary, so the check of that is off inside, and the function is
    traced from plain shapes, as if it ran on one device.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return function(*arguments)

    def traced(*arguments):
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arguments]
        return tuple(jax.extend.core.jaxpr_as_fun(jax.make_jaxpr(function)(*shapes))(*arguments))

    mapped = jax.shard_map(
        traced, in_specs=tuple(in_specs), out_specs=tuple(out_specs), axis_names={*mesh.axis_names}, check_vma=False
    )
    return tuple(as_varying(x, sorted(over_axes)) for x in mapped(*arguments))


def _head_axes(heads: int, kv_heads: int) -> tuple[tuple[str, ...], int]:
    """The mesh axes, of those left to the compiler, to shard heads over, and the copies of each key-value head."""
    mesh = jax.sharding.get_abstract_mesh()
    over = tuple(name for name, kind in zip(mesh.axis_names, mesh.axis_types) if kind == AxisType.Auto)
    devices = math.prod(mesh.shape[name] for name in over)
    if heads % devices == 0 and kv_heads % devices == 0:
        return over, 1
    if heads % devices == 0 and devices % kv_heads == 0:
        return over, devices // kv_heads
    return (), 1
