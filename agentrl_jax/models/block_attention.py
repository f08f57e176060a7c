"""Causal attention of whole rows in blocks of queries, with the memory of one block of scores instead of a square.

Shapes: as in `attention`; the queries are those of the last `C` of `S` positions.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from agentrl_jax.models.attention import SCORES_AT_ONCE, Keys, Query, attend, by_rows

BLOCK = 256
"""Largest number of queries of a block; a row that is no longer is one block."""
EXTENTS = 8
"""Largest number of different lengths of keys: with more blocks, several share a length and run in a loop.

Each length is compiled separately. With n lengths, 1/2 + 1/(2 n) of all pairs of positions are computed.
"""
ALIGNED = 128
"""The number of positions that slices of keys are aligned to, the lanes of a TPU."""


def attend_in_blocks(
    query: Query, key: Keys, value: Keys, *, window: int = 0, segment_ids: Int[Array, "B S"] | None = None
) -> Query:
    """Attention in plain JAX: a block of queries reads the keys up to its own end, from the start of its window on.

    The backward pass recomputes the scores. Rows are computed a few at a time, at most `SCORES_AT_ONCE` scores or one
    row. Arguments as in `row_attention.attention`.
    """
    chunk, heads, length = query.shape[1], query.shape[2], key.shape[2]
    blocks = -(-chunk // BLOCK)
    size = chunk if blocks == 1 else _round_up(-(-chunk // blocks), 8)
    of_rows = partial(_attend_rows, size=size, window=window)
    segments = () if segment_ids is None else (segment_ids,)
    most = SCORES_AT_ONCE // (size * heads * length)
    return jax.checkpoint(partial(by_rows, most, of_rows))(query, key, value, *segments)


def _attend_rows(
    query: Query, key: Keys, value: Keys, segment_ids: Int[Array, "B S"] | None = None, *, size: int, window: int
) -> Query:
    """Attention of a few rows in blocks of `size` queries."""
    chunk, offset = query.shape[1], key.shape[2] - query.shape[1]
    in_loop = -(-chunk // (size * EXTENTS))
    outputs = []
    for start in range(0, chunk, size * in_loop):
        queries = query[:, start : start + size * in_loop]
        first, last = offset + start, offset + start + queries.shape[1]
        begin = max(0, first - window + 1) // ALIGNED * ALIGNED if window else 0
        keys, values = (x[:, :, begin:last] for x in (key, value))
        ids = None if segment_ids is None else (segment_ids[:, first:last], segment_ids[:, begin:last])
        outputs.append(_attend_group(queries, keys, values, ids, size=min(size, queries.shape[1]), window=window))
    return jnp.concatenate(outputs, axis=1) if len(outputs) > 1 else outputs[0]


def _attend_group(
    query: Query,
    key: Keys,
    value: Keys,
    ids: tuple[Int[Array, "B C"], Int[Array, "B S"]] | None,
    *,
    size: int,
    window: int,
) -> Query:
    """Attention of consecutive blocks of `size` queries, one after the other; `ids` are of the queries and the keys."""
    chunk, length = query.shape[1], key.shape[2]
    first = length - chunk
    if chunk == size:
        return _attend_block(query, key, value, ids, first, 0, window=window)
    width = min(length, _round_up(size + window, ALIGNED)) if window else length
    blocks = -(-chunk // size)

    def split(x):
        padded = jnp.pad(x, [(0, 0), (0, blocks * size - chunk)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(padded.reshape(len(x), blocks, size, *x.shape[2:]), 1, 0)

    def of_block(block):
        number, queries, *query_ids = block
        at = first + number * size
        # Only with a window are there keys that no query of the block sees.
        begin = jnp.clip(at + size - width, 0, length - width) if width < length else 0
        keys, values = (jax.lax.dynamic_slice_in_dim(x, begin, width, axis=2) for x in (key, value))
        of_block = None
        if ids is not None:
            of_block = (*query_ids, jax.lax.dynamic_slice_in_dim(ids[1], begin, width, axis=1))
        return _attend_block(queries, keys, values, of_block, at, begin, window=window)

    inputs = (jnp.arange(blocks), split(query), *(() if ids is None else (split(ids[0]),)))
    outputs = jnp.moveaxis(jax.lax.map(of_block, inputs), 0, 1)
    return outputs.reshape(len(query), -1, *query.shape[2:])[:, :chunk]


def _attend_block(
    query: Query,
    key: Keys,
    value: Keys,
    ids: tuple[Int[Array, "B C"], Int[Array, "B S"]] | None,
    first: int | Int[Array, ""],
    begin: int | Int[Array, ""],
    *,
    window: int,
) -> Query:
    """Attention of one block; `first` is the position of its first query, and `begin` that of its first key."""

    def seen(ids) -> Bool[Array, "#B C S"]:
        queries = first + jnp.arange(query.shape[1])[:, None]
        keys = begin + jnp.arange(key.shape[2])
        mask = keys <= queries
        if window:
            mask &= keys > queries - window
        return mask[None] if ids is None else mask & (ids[0][:, :, None] == ids[1][:, None, :])

    return jax.checkpoint(lambda q, k, v: attend(q, k, v, seen(ids)))(query, key, value)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
