"""Causal attention of whole rows in blocks of queries, with the memory of one block of scores instead of a square.

Shapes: as in `attention`; the queries are those of the last `C` of `S` positions.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from agentrl_jax.models.attention import SCORES_AT_ONCE, Keys, Query, attend, by_rows
from agentrl_jax.models.heads import compiler_axes

BLOCK = 256
"""Largest number of queries of a block; a row that is no longer is one block."""
PACKED_BLOCK = 128
"""`BLOCK` of packed rows: the more queries, the more segments they are of, and the more keys that few of them see."""
EXTENTS = 8
"""Largest number of different lengths of keys: with more blocks, several share a length and run in a loop.

Each length is compiled separately. With n lengths, 1/2 + 1/(2 n) of all pairs of positions are computed. Blocks of
packed rows all run in one loop.
"""
ALIGNED = 128
"""The number of positions that slices of keys are aligned to, the lanes of a TPU."""


def attend_in_blocks(
    query: Query, key: Keys, value: Keys, *, window: int = 0, segment_ids: Int[Array, "B S"] | None = None
) -> Query:
    """Attention in plain JAX: a block of queries reads the keys up to its own end, from the start of its window on.

    The backward pass recomputes the scores. Rows are computed a few at a time, at most `SCORES_AT_ONCE` scores or one
    row. On CPUs, a block of packed rows reads no keys before the first segment that one of its queries is of. Arguments
    as in `row_attention.attention`.
    """
    chunk, heads, length = query.shape[1], query.shape[2], key.shape[2]
    size = _block_size(chunk, BLOCK)
    most = SCORES_AT_ONCE // (size * heads * length)
    of_rows: Callable[..., Query] = partial(by_rows, most, partial(_attend_rows, size=size, window=window))
    segments = () if segment_ids is None else (segment_ids,)
    # Devices whose rows differ take different branches, in which the compiler must not add collectives. Other platforms
    # were not measured; a GPU waits for its host at each choice of a branch.
    if segments and chunk > PACKED_BLOCK and not compiler_axes():
        packed = partial(_attend_packed, size=_block_size(chunk, PACKED_BLOCK), window=window)
        of_rows = partial(jax.lax.platform_dependent, cpu=partial(by_rows, 1, packed), default=of_rows)
    return jax.checkpoint(of_rows)(query, key, value, *segments)


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
    width = _widest(size, length, window)

    def of_block(number, queries, *query_ids):
        at = first + number * size
        # Only with a window are there keys that no query of the block sees.
        begin = jnp.clip(at + size - width, 0, length - width) if width < length else 0
        keys, values = (jax.lax.dynamic_slice_in_dim(x, begin, width, axis=2) for x in (key, value))
        of_block = None
        if ids is not None:
            of_block = (*query_ids, jax.lax.dynamic_slice_in_dim(ids[1], begin, width, axis=1))
        return _attend_block(queries, keys, values, of_block, at, begin, window=window)

    return _map_blocks(of_block, size, query, *(() if ids is None else ids[:1]))


def _attend_packed(
    query: Query, key: Keys, value: Keys, segment_ids: Int[Array, "B S"], *, size: int, window: int
) -> Query:
    """Attention of a few packed rows in blocks of `size` queries.

    A block reads the keys from the first one in a segment of one of its queries to its own end. The number of keys is
    rounded up to one of `EXTENTS` numbers, each of which is compiled.
    """
    chunk, length = query.shape[1], key.shape[2]
    widest = _widest(size, length, window)
    # Each is the same factor times the one before, so that short segments and long ones lose the same share.
    extents = sorted({min(_round_up(round(n), ALIGNED), widest) for n in np.geomspace(size, widest, EXTENTS)})

    def of_extent(extent, first, query, query_ids, key, value, segment_ids):
        begin = jnp.clip(first + size - extent, 0, length - extent)
        keys, values = (jax.lax.dynamic_slice_in_dim(x, begin, extent, axis=2) for x in (key, value))
        ids = (query_ids, jax.lax.dynamic_slice_in_dim(segment_ids, begin, extent, axis=1))
        return _attend_block(query, keys, values, ids, first, begin, window=window)

    # Inside checkpoints, because the backward pass would keep what each of the branches needs.
    branches = [jax.checkpoint(partial(of_extent, extent)) for extent in extents]

    def of_block(number, queries, query_ids):
        first = length - chunk + number * size
        read = (query_ids[:, :, None] == segment_ids[:, None, :]) & (query_ids[:, :, None] != 0)
        begin = jnp.min(jnp.where(jnp.any(read, axis=(0, 1)), jnp.arange(length), first))
        chosen = jnp.sum(first + size - begin > jnp.array(extents[:-1]), dtype=jnp.int32)
        choose = jax.checkpoint(lambda *arrays: jax.lax.switch(chosen, branches, *arrays))
        return choose(first, queries, query_ids, key, value, segment_ids)

    return _map_blocks(of_block, size, query, segment_ids[:, length - chunk :])


def _map_blocks(function: Callable[..., Query], size: int, query: Query, *ids: Int[Array, "B C"]) -> Query:
    """Applies a function of number, queries and ids to consecutive blocks of `size` queries, one after the other."""
    chunk = query.shape[1]
    blocks = -(-chunk // size)

    def split(x):
        padded = jnp.pad(x, [(0, 0), (0, blocks * size - chunk)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(padded.reshape(len(x), blocks, size, *x.shape[2:]), 1, 0)

    inputs = (jnp.arange(blocks), *map(split, (query, *ids)))
    outputs = jnp.moveaxis(jax.lax.map(lambda block: function(*block), inputs), 0, 1)
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


def _block_size(chunk: int, most: int) -> int:
    """Number of queries of each block if they are divided equally among as few as possible."""
    blocks = -(-chunk // most)
    return chunk if blocks == 1 else _round_up(-(-chunk // blocks), 8)


def _widest(size: int, length: int, window: int) -> int:
    """The number of keys that a block of `size` queries reads at most."""
    return min(length, _round_up(size + window, ALIGNED)) if window else length


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
