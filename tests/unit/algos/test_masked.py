import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algos_oracles import PROPERTY, masks, numbers
from hypothesis import given

from agentrl_jax.algos import masked, vocab_sums

TWO = types.SimpleNamespace(
    sum=lambda tree: jax.tree.map(lambda x: jax.lax.psum(x, "d"), tree),
    largest=lambda tree: jax.tree.map(lambda x: jax.lax.pmax(x, "d"), tree),
)
"""Two devices that hold half of the rows each."""


def everything(x, mask, devices=None):
    mean, variance = masked.moments(x, mask, devices)
    return {
        "total": masked.total(x, mask, devices),
        "count": masked.count(mask, devices),
        "smallest": masked.smallest(x, mask, devices),
        "largest": masked.largest(x, mask, devices),
        "mean": mean,
        "variance": variance,
    }


whole = jax.jit(everything)
halves = jax.jit(lambda x, mask: jax.vmap(lambda *half: everything(*half, TWO), axis_name="d")(x, mask))


@PROPERTY
@given(numbers, masks)
def test_what_is_outside_of_the_mask_is_ignored(values, mask):
    values = values + np.float32(100.0)
    dirty = np.where(mask, values, np.where(values > 100, np.nan, -np.inf)).astype(np.float32)
    inside = values[mask].astype(np.float64)
    some = len(inside) > 0
    expected = {
        "total": inside.sum(),
        "count": len(inside),
        "smallest": inside.min() if some else 0.0,
        "largest": inside.max() if some else 0.0,
        "mean": inside.mean() if some else 0.0,
        "variance": inside.var(ddof=1) if len(inside) > 1 else 0.0,
    }
    found = whole(dirty, mask)
    split = halves(*(x.reshape(2, -1, x.shape[1]) for x in (dirty, mask)))
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, rel=1e-5, abs=1e-3), name
        np.testing.assert_allclose(split[name], [found[name]] * 2, rtol=1e-5, atol=1e-4, err_msg=name)


def test_means_of_batches_add():
    parts = [masked.mean(jnp.arange(4.0), jnp.array(mask)) for mask in ([1, 1, 0, 0], [0, 0, 0, 1], [0] * 4)]
    both = jax.tree.map(lambda *x: sum(x), *parts)
    assert (float(both.total), float(both.number), float(both.value)) == (4.0, 3.0, pytest.approx(4 / 3))
    assert float(parts[2].value) == 0.0


def test_rows_are_chosen_from_two_trees():
    rows = jnp.array([True, False, True])
    new, old = {"a": jnp.ones((3, 2, 2)), "b": jnp.arange(3)}, {"a": jnp.zeros((3, 2, 2)), "b": -jnp.arange(3)}
    found = masked.where(rows, new, old)
    assert np.asarray(found["a"])[:, 1, 1].tolist() == [1, 0, 1]
    assert found["b"].tolist() == [0, -1, 2]


def test_sums_over_a_vocabulary_that_devices_share():
    x = jnp.array([[1.0, 5.0, 2.0, 3.0], [-1.0, -2.0, -3.0, -4.0]])
    shares = jnp.stack([x[:, :2], x[:, 2:]])
    for function, expected in ((vocab_sums.total, x.sum(1)), (vocab_sums.highest, x.max(1))):
        np.testing.assert_array_equal(function(x, ""), expected)
        found = jax.vmap(lambda share, f=function: f(share, "v"), axis_name="v")(shares)
        np.testing.assert_array_equal(found, jnp.stack([expected, expected]))
    assert not np.asarray(jax.grad(lambda x: jnp.sum(vocab_sums.highest(x, "")))(x)).any()
