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
