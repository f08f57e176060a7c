"""Products and attention in the forms used by a rollout, against the plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.models import attention, matmul
from agentrl_jax.models.quantized import quantize


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_transposed_matrix_gives_the_same_product(rows):
    """With few rows and with many, which use different code."""
    few = 8 * rows <= 24
    assert few == (rows != 4)
    x = jax.random.normal(jax.random.key(0), (rows, 24))
    matrix = jax.random.normal(jax.random.key(1), (24, 40))
    np.testing.assert_allclose(x @ matmul.Transposed(matrix.T), x @ matrix, atol=1e-5)


@pytest.mark.parametrize("scores", [1, 2 * 5 * 4 * 9, 10**6], ids=["a row", "two rows", "all rows"])
def test_attention_by_rows_is_attention(scores, monkeypatch):
    """Six rows of ragged chunks, for any limit on the scores computed at a time."""
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", scores)
    query, key, value = (
        jax.random.normal(jax.random.key(i), shape)
        for i, shape in enumerate([(6, 5, 4, 8), (6, 2, 9, 8), (6, 2, 9, 8)])
    )
    positions = jnp.array([0, 1, 2, 3, 4, 0])[:, None] + jnp.arange(5)
    seen = attention.visible(jnp.arange(9)[None], positions)
    whole = attention.attend(query, key, value, seen)
    np.testing.assert_allclose(attention.attend_cached(query, [attention.Segment(key, value, seen)]), whole, atol=1e-6)


@pytest.mark.parametrize(("chunk", "filled"), [(1, 2), (5, 1), (5, 4)])
def test_only_used_blocks_are_read(chunk, filled, monkeypatch):
    """Six rows, a part of their keys shared by all and the rest in four blocks; unused ones are NaN."""
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", 2 * 5 * 4 * 47)
    query = jax.random.normal(jax.random.key(0), (6, chunk, 4, 8))
    shared = [jax.random.normal(jax.random.key(i), (2, 7, 8)) for i in (1, 2)]
    own = [jax.random.normal(jax.random.key(i), (6, 2, 40, 8)) for i in (3, 4)]
    seen = jnp.arange(40) <= (10 * filled - chunk - jnp.arange(6))[:, None, None] + jnp.arange(chunk)[:, None]
    key, value = (jnp.concatenate([jnp.broadcast_to(x, (6, *x.shape)), y], axis=2) for x, y in zip(shared, own))
    of_shared = jnp.arange(7) < jnp.array([7, 3, 1, 0, 5, 6])[:, None, None]
    of_shared = jnp.broadcast_to(of_shared, (6, chunk, 7))
    whole = attention.attend(query, key, value, jnp.concatenate([of_shared, seen], axis=2))
    parts = zip(*(jnp.split(x, 4, axis=axis) for x, axis in ((own[0], 2), (own[1], 2), (seen, 2))))
    segments = [attention.Segment(*shared, of_shared)]
    for number, (key, value, mask) in enumerate(parts):
        used = jnp.bool(number < filled)
        key, value = (jnp.where(used, x, jnp.nan) for x in (key, value))
        segments.append(attention.Segment(key, value, mask, used if number else None))
    mixed = jax.jit(attention.attend_cached)(query, segments)
    np.testing.assert_allclose(mixed, whole, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "integers", "chunk"),
    [(1, False, 1), (2, True, 5), (3, False, 5), (12, True, 1)],
    ids=["a row", "no divisor of a group", "a group", "all"],
)
def test_rows_of_a_group_read_the_same_keys(rows, chunk, integers, monkeypatch):
    """Twelve rows in groups of three that share seven keys, beside five of their own, for a few rows at a time."""
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", rows * chunk * 4 * 12)
    query = jax.random.normal(jax.random.key(0), (12, chunk, 4, 8))
    shared = [jax.random.normal(jax.random.key(i), (4, 2, 7, 8)) for i in (1, 2)]
    if integers:
        shared = [quantize(x, axis=-1) for x in shared]
    of_rows = [jnp.repeat(x.dequantized(jnp.float32) if integers else x, 3, axis=0) for x in shared]
    own = [jax.random.normal(jax.random.key(i), (12, 2, 5, 8)) for i in (3, 4)]
    length = 1 + jnp.arange(12) % 7
    seen = jnp.broadcast_to((jnp.arange(7) < length[:, None])[:, None], (12, chunk, 7))
    of_own = attention.visible(jnp.arange(5)[None], (jnp.arange(12) % 4)[:, None] + jnp.arange(chunk))
    wanted = attention.attend_segments(query, [attention.Segment(*of_rows, seen), attention.Segment(*own, of_own)])
    found = attention.attend_cached(query, [attention.Segment(*own, of_own), attention.Segment(*shared, seen)])
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_single_query_sees_what_it_sees_in_a_chunk():
    """The scores of a single token are multiplied in another order."""
    query, key, value = (
        jax.random.normal(jax.random.key(i), shape)
        for i, shape in enumerate([(3, 2, 6, 8), (3, 2, 9, 8), (3, 2, 9, 8)])
    )
    seen = attention.visible(jnp.arange(9)[None], jnp.array([[3, 4], [0, 1], [7, 8]]))
    chunk = attention.attend(query, key, value, seen)
    for i in range(2):
        alone = attention.attend(query[:, i : i + 1], key, value, seen[:, i : i + 1])
        np.testing.assert_allclose(alone[:, 0], chunk[:, i], atol=1e-6)
