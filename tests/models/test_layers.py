"""Products and attention in the forms used by a rollout, against the plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.models import attention, matmul


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
    seen = attention.visible(positions, 9)
    whole = attention.attend(query, key, value, seen)
    np.testing.assert_allclose(attention.attend_by_rows(query, key, value, seen), whole, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("filled", [5, 9, 16, 37])
def test_of_a_large_cache_only_the_filled_quarters_are_read(chunk, filled, monkeypatch):
    """Six rows of a cache of 37 positions; reading its later quarters would spoil the result."""
    monkeypatch.setattr(attention, "LARGE_CACHE", 0)
    monkeypatch.setattr(attention, "CACHED_AT_ONCE", 2 * 2 * 2 * 8 * 20)
    query, key, value = (
        jax.random.normal(jax.random.key(i), shape)
        for i, shape in enumerate([(6, chunk, 4, 8), (6, 2, 37, 8), (6, 2, 37, 8)])
    )
    end = jnp.maximum(filled - jnp.arange(6), chunk)
    seen = attention.visible(end[:, None] - chunk + jnp.arange(chunk), 37)
    whole = attention.attend(query, key, value, seen)
    quarter = next(n for n in (10, 19, 28, 37) if n >= filled)
    key, value = (x.at[:, :, quarter:].set(jnp.nan) for x in (key, value))
    mixed = jax.jit(attention.attend_cached)(query, key, value, seen, jnp.int32(filled))
    np.testing.assert_allclose(mixed, whole, atol=1e-6)


def test_a_single_query_sees_what_it_sees_in_a_chunk():
    """The scores of a single token are multiplied in another order."""
    query, key, value = (
        jax.random.normal(jax.random.key(i), shape)
        for i, shape in enumerate([(3, 2, 6, 8), (3, 2, 9, 8), (3, 2, 9, 8)])
    )
    seen = attention.visible(jnp.array([[3, 4], [0, 1], [7, 8]]), 9)
    chunk = attention.attend(query, key, value, seen)
    for i in range(2):
        alone = attention.attend(query[:, i : i + 1], key, value, seen[:, i : i + 1])
        np.testing.assert_allclose(alone[:, 0], chunk[:, i], atol=1e-6)
