"""Comparison of trees and trajectories bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np


def differing(a, b) -> list[str]:
    raw = [
        jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, t)
        for t in (a, b)
    ]
    same = jax.tree.map(lambda x, y: np.array_equal(np.asarray(x), np.asarray(y)), *raw)
    return [jax.tree_util.keystr(path) for path, equal in jax.tree_util.tree_leaves_with_path(same) if not equal]


def assert_same(a, b):
    """Trajectories of two programs are equal bit for bit, except that log-probabilities may be rounded differently."""
    assert [leaf for leaf in differing(a, b) if not leaf.endswith("logprob")] == []
    np.testing.assert_allclose(a.response.logprob, b.response.logprob, atol=1e-3)
