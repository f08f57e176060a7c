import algos_oracles as oracle
import jax
import jax.numpy as jnp
import numpy as np
from algos_oracles import PROPERTY, group_returns
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.algos import groups

leave_one_out = jax.jit(groups.leave_one_out)


@PROPERTY
@given(group_returns, st.randoms(use_true_random=False))
def test_leave_one_out_compares_with_the_others(scores, random):
    valid = np.array([[random.random() < 0.7 for _ in row] for row in scores])
    found = np.asarray(leave_one_out(np.where(valid, scores, np.nan), valid))
    assert not found[~valid].any()
    for row, scored, counts in zip(found, scores, valid):
        np.testing.assert_allclose(row[counts], oracle.leave_one_out(scored[counts]), atol=1e-4)


def test_equal_scores_and_groups_of_one_have_no_advantage():
    equal = np.repeat(np.float32([[0.1], [1e4 / 3], [-0.5]]), 7, axis=1)
    assert not np.asarray(leave_one_out(equal, np.ones(equal.shape, bool))).any()
    assert not np.asarray(leave_one_out(equal[:, :1], np.ones((3, 1), bool))).any()


def test_a_greedy_baseline_that_broke_leaves_its_group_out():
    scores = jnp.array([[1.0, 0.0], [1.0, 2.0]])
    valid = jnp.array([[True, True], [True, False]])
    found = groups.over_baseline(scores, valid, jnp.array([jnp.nan, 0.5]))
    np.testing.assert_array_equal(found, [[0.0, 0.0], [0.5, 0.0]])


def test_weights_of_groups_and_rows():
    scores = jnp.array([[0.0, 2.0], [1.0, 1.0], [0.0, 1.0]])
    weights = groups.spread_weights(scores, jnp.ones((3, 2), bool))
    np.testing.assert_allclose(weights, [1.0, 0.0, 0.5], atol=1e-5)
    assert not np.asarray(groups.spread_weights(scores * 0, jnp.ones((3, 2), bool))).any()
    np.testing.assert_allclose(groups.length_weights(jnp.array([2, 0, 6])), [2.0, 0.0, 4 / 6], rtol=1e-6)
    assert not np.asarray(groups.length_weights(jnp.array([0, 0]))).any()
