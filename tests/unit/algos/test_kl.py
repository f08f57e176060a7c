import algos_oracles as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.algos import kl
from agentrl_jax.errors import BadValue

KINDS = ["k1", "k2", "k3", "abs", "mse"]

estimates = jax.jit(lambda logprob, reference: {kind: kl.estimate(logprob, reference, kind) for kind in KINDS})
update = jax.jit(kl.update)


@oracle.PROPERTY
@given(oracle.numbers, oracle.numbers)
def test_estimates_equal_the_reference(logprob, reference):
    for kind, found in estimates(logprob, reference).items():
        difference = logprob.astype(np.float64) - reference
        expected = np.vectorize(lambda d, kind=kind: oracle.kl(d, kind))(difference)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        assert kind == "k1" or (np.asarray(found) >= 0).all()


def test_other_estimators_are_refused():
    with pytest.raises(BadValue) as refused:
        kl.estimate(jnp.zeros(1), jnp.zeros(1), "k4")
    assert (refused.value.key, refused.value.value) == ("estimator", "k4")


def test_far_apart_policies_do_not_overflow():
    far = np.full((4, 24), 300.0, np.float32)
    assert np.isfinite(estimates(far, -far)["k3"]).all()
    np.testing.assert_array_equal(estimates(-far, far)["k3"], np.full((4, 24), 10.0))


def test_the_reference_gets_no_gradient_and_k3_pulls_towards_it():
    logprob, reference = jnp.full((4, 24), -0.5), jnp.full((4, 24), -2.0)
    of_policy, of_reference = jax.grad(lambda x, y: jnp.sum(kl.estimate(x, y, "k3")), argnums=(0, 1))(
        logprob, reference
    )
    np.testing.assert_allclose(of_policy, 1 - np.exp(-1.5), rtol=1e-5)
    assert not np.asarray(of_reference).any()


@oracle.PROPERTY
@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=5),
    st.sampled_from([1.0, 32.0, 128.0]),
    st.sampled_from([0.01, 0.1]),
    st.sampled_from([1000.0, 10000.0, np.inf]),
)
def test_the_controller_follows_the_observed_divergence(observed, num_steps, target, horizon):
    state, expected = kl.KLController(coef=jnp.float32(0.2)), 0.2
    for divergence in observed:
        state = update(state, divergence, num_steps, target, horizon)
        expected *= 1 + min(max(divergence / target - 1, -0.2), 0.2) * num_steps / horizon
    assert float(state.coef) == pytest.approx(expected, rel=1e-5)
    if horizon == np.inf:
        assert state.coef == np.float32(0.2)


def test_a_batch_without_a_divergence_leaves_the_coefficient():
    state = kl.KLController(coef=jnp.float32(0.2))
    assert update(state, np.float32(np.nan), 32.0, 0.1, 100.0).coef == state.coef
    assert update(state, np.float32(0.0), 32.0, 0.1, 100.0).coef < state.coef
