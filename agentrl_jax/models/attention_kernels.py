"""Attention kernels of accelerators: cuDNN's on GPUs, and splash attention, written in Pallas, on TPUs.

They keep no scores in memory (flash attention, Dao 2023). Arguments as in `row_attention.attention`; shapes as in
`attention`, where the queries are those of the last `C` of `S` positions.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from agentrl_jax.models.attention import Keys, Query
from agentrl_jax.models.heads import map_heads

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
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel  # slow

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

    return map_heads(kernel, query, key, value, *(() if segment_ids is None else (segment_ids,)))


def attend_cudnn(query: Query, key: Keys, value: Keys, *, window: int = 0) -> Query:
    """Attention by cuDNN on NVIDIA GPUs, in bfloat16."""
    # cuDNN's causal mask starts at the first key, so earlier positions get queries too: of zeros. Its gradient needs an
    # even number of positions; no query sees the one that is added at the end.
    before, odd = key.shape[2] - query.shape[1], key.shape[2] % 2

    def kernel(query, key, value):
        key, value = (jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, odd), (0, 0), (0, 0))) for x in (key, value))
        mixed = jax.nn.dot_product_attention(
            jnp.pad(query, ((0, 0), (before, odd), (0, 0), (0, 0))),
            key,
            value,
            is_causal=True,
            local_window_size=(window - 1, 0) if window else None,
            implementation=CUDNN,
        )
        return mixed[:, before : mixed.shape[1] - odd]

    return map_heads(kernel, query, key, value)


@functools.lru_cache(maxsize=64)
def _splash_kernel(
    chunk: int, length: int, window: int, interpret: bool, heads: int
) -> tuple[Callable[..., jax.Array], tuple[int, int]]:
    """The kernel for one row, and the numbers of queries and keys that it computes, padding included."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

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
