import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algos.preferences import METRICS, loss

KINDS = ("sigmoid", "hinge", "ipo")
POLICY, REFERENCE = (
    np.array([[-3.0, -2.5], [-1.0, -4.0], [-2.0, -2.0]]),
    np.array([[-3.0, -2.5], [-2.0, -3.0], [-1.0, -4.0]]),
)
MARGINS = [0.0, 2.0, -3.0]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("sigmoid", [np.log(2), np.log1p(np.exp(-1.0)), np.log1p(np.exp(1.5))]),
        ("hinge", [1.0, 0.0, 2.5]),
        ("ipo", [1.0, 1.0, 16.0]),
        ("none", [0.0, 0.0, 0.0]),
    ],
)
def test_losses_of_known_margins(kind, expected):
    found, metrics = loss(jnp.array(POLICY), jnp.array(REFERENCE), kind=kind, beta=0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert set(metrics) == set(METRICS)
    assert metrics["margin"].tolist() == MARGINS
    assert metrics["chosen_gain"].tolist() == [0.0, 1.0, -1.0]
    assert metrics["accuracy"].tolist() == [0.0, 1.0, 0.0]
    assert metrics["chosen_logprob"].tolist() == POLICY[:, 0].tolist()
    assert metrics["rejected_logprob"].tolist() == POLICY[:, 1].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind):
    with jax.enable_x64(True):
        policy, reference = jnp.array(POLICY), jnp.array(REFERENCE)

        def total(policy):
            return jnp.sum(loss(policy, reference, kind=kind, beta=0.4)[0])

        grads, step = np.array(jax.grad(total)(policy)), 1e-6
        for index in np.ndindex(policy.shape):
            moved = (total(policy.at[index].add(sign * step)) for sign in (1, -1))
            assert grads[index] == pytest.approx((float(next(moved)) - float(next(moved))) / (2 * step), abs=1e-6)
        np.testing.assert_allclose(grads[:, 0], -grads[:, 1])  # only the difference of the answers counts
        assert grads[0, 0] < 0  # the chosen answer of an even pair becomes likelier


def test_a_small_beta_leaves_half_of_it_as_gradient():
    """The limit of the sigmoid loss: -beta / 2 times the margin."""
    grads = jax.grad(lambda x: jnp.sum(loss(x, jnp.array(REFERENCE), kind="sigmoid", beta=1e-4)[0]))(jnp.array(POLICY))
    np.testing.assert_allclose(grads / 1e-4, [[-0.5, 0.5]] * 3, rtol=1e-3)
