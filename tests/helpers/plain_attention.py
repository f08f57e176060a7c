"""Attention as in the paper, with all scores at once, and random inputs for comparisons."""

import functools

import jax
import jax.numpy as jnp
import pytest

from agentrl_jax.models import block_attention


def plain_attention(query, key, value, *, window=0, segment_ids=None):
    """Causal grouped-query attention of the last C of S positions; arguments as `row_attention.attention`."""
    chunk, length, shared = query.shape[1], key.shape[2], query.shape[2] // key.shape[1]
    key, value = (jnp.repeat(x.astype(jnp.float32), shared, axis=1) for x in (key, value))
    scores = jnp.einsum("bchd,bhsd->bhcs", query.astype(jnp.float32), key) * query.shape[-1] ** -0.5
    queries, keys = jnp.arange(length - chunk, length)[:, None], jnp.arange(length)
    seen = keys <= queries
    if window:
        seen &= keys > queries - window
    if segment_ids is not None:
        seen = seen & (segment_ids[:, -chunk:, None] == segment_ids[:, None, :])[:, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhcs,bhsd->bchd", weights, value).astype(query.dtype)


def random_inputs(rows, chunk, length, *, heads=4, kv_heads=2, head_dim=8, dtype=jnp.float32, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    shapes = (rows, chunk, heads, head_dim), *[(rows, kv_heads, length, head_dim)] * 2
    return tuple(jax.random.normal(key, shape).astype(dtype) for key, shape in zip(keys, shapes))


def random_segments(rows, length, seed=0):
    """Ids, from 1, of about four segments of different lengths in each row, i32[B, S]."""
    starts = jax.random.bernoulli(jax.random.key(seed + 100), 4 / length, (rows, length))
    return 1 + jnp.cumsum(starts, axis=1, dtype=jnp.int32)


def value_and_gradients(attention, query, key, value):
    """The output of an attention function and the gradients of a loss in which every entry has another weight."""

    def loss(query, key, value):
        mixed = attention(query, key, value)
        weight = jnp.sin(jnp.arange(mixed.size, dtype=jnp.float32)).reshape(mixed.shape)
        return jnp.sum(weight * mixed.astype(jnp.float32)), mixed

    (_, mixed), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(query, key, value)
    return mixed, gradients


def compared(attention, inputs, *, segment_ids=None, **options):
    """Output and gradients of an attention function, and of the plain form, without those of padding."""

    def real(form, *x):
        mixed = form(*x, segment_ids=segment_ids, **options)
        return mixed if segment_ids is None else jnp.where(of_queries(segment_ids != 0, mixed), mixed, 0)

    forms = (functools.partial(real, form) for form in (attention, plain_attention))
    return jax.jit(lambda *x: tuple(value_and_gradients(form, *x) for form in forms))(*inputs)


def of_queries(positions, query):
    return positions[:, -query.shape[1] :, None, None]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 8 queries in at most 3 lengths of keys, so that short rows take every path."""
    sizes = {"BLOCK": 8, "PACKED_BLOCK": 8, "EXTENTS": 3, "ALIGNED": 4, "SCORES_AT_ONCE": 2048}
    for name, value in sizes.items():
        monkeypatch.setattr(block_attention, name, value)


def ids_of(*rows):
    numbers = [[number for number, length in enumerate(row, 1) for _ in range(length)] for row in rows]
    return jnp.array([row + [0] * (64 - len(row)) for row in numbers])


PACKED = ids_of([30, 20, 9], [64], [7, 8, 1, 16, 32], [])
"""Padding at an end, one long segment, borders inside of blocks and between them, and an empty bin."""
