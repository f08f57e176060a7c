"""Which positions a query sees."""

import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.models import attention


@pytest.mark.parametrize("window", [0, 1, 3, jnp.int32(2)])
def test_a_query_sees_itself_and_the_latest_before_it(window):
    keys, queries = np.array([[0, 1, 2, 3, 4], [9, 5, 6, 7, 8]]), np.array([[3, 0], [7, 9]])
    size = int(window) or 100
    expected = [[[q - size < k <= q for k in row] for q in of_row] for row, of_row in zip(keys, queries)]
    np.testing.assert_array_equal(attention.visible(jnp.asarray(keys), jnp.asarray(queries), window), expected)


@pytest.mark.parametrize("chunk", [1, 3])
def test_attention_is_the_softmax_of_scaled_products(chunk):
    """Four query heads read two key-value heads; a mask hides some positions."""
    draw = np.random.default_rng(chunk)
    query, key, value = (draw.normal(size=shape) for shape in ((2, chunk, 4, 8), (2, 2, 5, 8), (2, 2, 5, 8)))
    seen = draw.random((2, chunk, 5)) < 0.6
    seen[..., 0] = True
    expected = np.zeros(query.shape)
    for row, at, head in np.ndindex(2, chunk, 4):
        weight = np.where(seen[row, at], np.exp(key[row, head // 2] @ query[row, at, head] / np.sqrt(8)), 0.0)
        expected[row, at, head] = weight / weight.sum() @ value[row, head // 2]
    found = attention.attend(*(jnp.asarray(x, jnp.float32) for x in (query, key, value)), jnp.asarray(seen))
    np.testing.assert_allclose(found, expected, atol=1e-5)
