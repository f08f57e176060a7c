from functools import partial

import algos_oracles as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.algos import groups

KINDS = {
    "by std": (partial(groups.group_advantages, normalize_std=True), partial(oracle.normalized, by_std=True)),
    "centered": (partial(groups.group_advantages, normalize_std=False), partial(oracle.normalized, by_std=False)),
    "leave one out": (groups.leave_one_out, oracle.leave_one_out),
}
PROGRAMS = {kind: jax.jit(function) for kind, (function, _) in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
@oracle.PROPERTY
@given(oracle.group_returns, st.randoms(use_true_random=False))
def test_advantages_equal_the_reference(kind, scores, random):
    valid = np.array([[random.random() < 0.7 for _ in row] for row in scores])
    found = np.asarray(PROGRAMS[kind](np.where(valid, scores, np.nan), valid))
    assert not found[~valid].any()
    for row, scored, counts in zip(found, scores, valid):
        if counts.any():
            np.testing.assert_allclose(row[counts], KINDS[kind][1](scored[counts]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_without_differences_has_advantages_of_exactly_zero(kind):
    # Sums of these numbers are rounded: their mean is not the number itself.
    equal = np.repeat(np.array([[0.1], [-3.3], [1e4 / 3], [1e-7], [10.9]], np.float32), 7, axis=1)
    for valid in (np.ones(equal.shape, bool), np.tile(np.arange(7) % 3 > 0, (5, 1))):
        assert not np.asarray(PROGRAMS[kind](equal, valid)).any()
    assert not np.asarray(PROGRAMS[kind](equal[:, :1], np.ones((5, 1), bool))).any()


def test_a_greedy_baseline_that_broke_leaves_its_group_out():
    scores = jnp.array([[1.0, 0.0], [1.0, 2.0]])
    valid = jnp.array([[True, True], [True, False]])
    found = groups.over_baseline(scores, valid, jnp.array([jnp.nan, 0.5]))
    np.testing.assert_array_equal(found, [[0.0, 0.0], [0.5, 0.0]])
