import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algos import distillation, kl

DRAW = np.random.default_rng(0)
STUDENT, TEACHER, OLD = (DRAW.normal(0, 1, 7) for _ in range(3))


def log_softmax(logits):
    return logits - np.log(np.sum(np.exp(logits)))


def divergence(logits):
    policy = log_softmax(logits)
    return np.sum(np.exp(policy) * (policy - log_softmax(TEACHER)))


def slope(step=1e-6):
    """Finite differences of KL(student || teacher) in double precision."""
    return np.array([(divergence(STUDENT + step * e) - divergence(STUDENT - step * e)) / (2 * step) for e in np.eye(7)])


def expected_loss(logits, sampled_by, cap):
    """Mean of the loss over tokens of a policy."""
    logprob, old = jax.nn.log_softmax(logits), jnp.asarray(log_softmax(sampled_by))
    advantage = distillation.gap(logprob, jnp.asarray(log_softmax(TEACHER)))
    return jnp.sum(jnp.exp(old) * distillation.sampled_loss(logprob, old, advantage, cap=cap))


@pytest.mark.parametrize("sampled_by", [STUDENT, OLD], ids=["student", "another"])
def test_the_mean_gradient_of_sampled_tokens_is_that_of_the_divergence(sampled_by):
    with jax.enable_x64(True):
        found = jax.grad(expected_loss)(jnp.asarray(STUDENT), sampled_by, 1e9)
        assert found.dtype == np.float64
    np.testing.assert_allclose(found, slope(), atol=1e-8)


def test_the_gradient_over_the_vocabulary_is_that_of_the_divergence():
    with jax.enable_x64(True):
        value, found = jax.value_and_grad(kl.full)(jnp.asarray(STUDENT), jnp.asarray(TEACHER))
    assert value == pytest.approx(divergence(STUDENT), rel=1e-12)
    np.testing.assert_allclose(found, slope(), atol=1e-8)


def test_weights_are_capped_and_have_no_gradient():
    logprob, old = jnp.log(jnp.array([0.2, 0.6, 0.9])), jnp.log(jnp.array([0.4, 0.4, 0.1]))
    advantage = jnp.array([1.0, -2.0, 3.0])

    def loss(logprob, old, advantage):
        return jnp.sum(distillation.sampled_loss(logprob, old, advantage, cap=2.0))

    of_policy, of_old, of_advantage = jax.grad(loss, argnums=(0, 1, 2))(logprob, old, advantage)
    np.testing.assert_allclose(of_policy, [-0.5, 2.0 * 1.5, -3.0 * 2.0], rtol=1e-5)
    assert not np.any(of_old)
    assert not np.any(of_advantage)
    far = distillation.sampled_loss(jnp.float32(0.0), jnp.float32(-300.0), jnp.float32(1.0), cap=3e38)
    assert np.isfinite(far)


def test_a_gap_is_above_zero_where_the_teacher_finds_a_token_likelier_and_has_no_gradient():
    assert distillation.gap(jnp.float32(-2.0), jnp.float32(-0.5)) == 1.5
    found = jax.grad(lambda x, y: distillation.gap(x, y), argnums=(0, 1))(jnp.float32(-2.0), jnp.float32(-0.5))
    assert found == (0.0, 0.0)


def test_a_gate_grows_with_the_gap_and_has_no_gradient():
    gaps = jnp.linspace(-6, 6, 25)
    found = np.asarray(distillation.gate(gaps, 1.0))
    assert np.all(np.diff(found) > 0)
    assert 0 < found[0] < 0.01 < 0.99 < found[-1] < 1
    assert found[12] == 0.5
    steeper = np.asarray(distillation.gate(gaps, 2.0))
    np.testing.assert_allclose(steeper, 1 / (1 + np.exp(-2 * np.asarray(gaps))), rtol=1e-5)
    assert not np.any(jax.grad(lambda x: jnp.sum(distillation.gate(x, 1.0)))(gaps))


def test_a_moving_average_takes_its_share():
    found = distillation.moving_average({"a": jnp.float32(1.0)}, {"a": jnp.float32(3.0)}, jnp.float32(0.25))
    assert found == {"a": 1.5}
