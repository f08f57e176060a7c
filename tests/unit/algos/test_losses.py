import algos_oracles as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algos_oracles import LENGTH, PROPERTY, ROWS, masks, numbers
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl_jax.algos import losses

MODES = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]
NORM = 50.0

policy_loss = jax.jit(losses.policy_loss, static_argnames="dual_clip")
value_loss = jax.jit(losses.value_loss, static_argnames="clip")
gspo_loss = jax.jit(losses.gspo_loss)
importance_weights = jax.jit(losses.importance_weights, static_argnames=("correction", "level"))


@jax.jit
def whole_losses(loss, mask):
    count = losses.count(mask)
    return {mode: jnp.sum(loss * losses.token_weights(mask, mode, count, norm_length=NORM)) for mode in MODES}


@PROPERTY
@given(numbers, numbers, numbers, st.sampled_from([(0.0, 0.2, 1.5), (0.2, 0.28, 3.0), (1.0, 0.28, None)]))
def test_policy_loss_equals_the_reference(logprob, old, advantages, bounds):
    low, high, dual = bounds
    loss, stats = policy_loss(logprob, old, advantages, clip_low=low, clip_high=high, dual_clip=dual)
    # A ratio within rounding of a bound may be on either side of it, which changes the flags but not the loss.
    ratio = np.exp(logprob.astype(np.float64) - old)
    bounds = [1 - low, 1 + high] + ([] if dual is None else [dual])
    clear = np.min([np.abs(ratio - bound) for bound in bounds], axis=0) > 1e-5
    clear &= np.abs(advantages) > 1e-6
    for index in np.ndindex(loss.shape):
        expected, clipped, clipped_low = oracle.policy_loss(
            float(logprob[index]), float(old[index]), float(advantages[index]), low, high, dual
        )
        assert float(loss[index]) == pytest.approx(expected, rel=1e-4, abs=1e-6)
        if clear[index]:
            assert bool(stats.clipped[index]) == clipped
            assert bool(stats.clipped_low[index]) == clipped_low
    np.testing.assert_allclose(stats.ratio, ratio, rtol=1e-4)


def test_log_ratios_far_outside_do_not_overflow():
    far = np.full((ROWS, LENGTH), 500.0, np.float32)
    for sign in (1.0, -1.0):
        loss, stats = policy_loss(sign * far, 0 * far, -1 + 0 * far, clip_low=0.2, clip_high=0.2, dual_clip=None)
        assert np.isfinite(loss).all()
        np.testing.assert_allclose(stats.log_ratio, sign * 20.0)


@PROPERTY
@given(numbers, numbers, numbers, st.sampled_from([0.2, 0.5, None]))
def test_value_loss_equals_the_reference(values, old, returns, clip):
    loss, clipped = value_loss(values, old, returns, clip=clip)
    if clip is None:
        assert not np.asarray(clipped).any()
    for index in np.ndindex(loss.shape):
        expected = oracle.value_loss(float(values[index]), float(old[index]), float(returns[index]), clip)
        assert float(loss[index]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


@PROPERTY
@given(numbers, masks)
@example(np.ones((ROWS, LENGTH), np.float32), np.zeros((ROWS, LENGTH), bool))
def test_weighted_sums_equal_the_four_means(loss, mask):
    found = whole_losses(loss, mask)
    for mode in MODES:
        assert float(found[mode]) == pytest.approx(oracle.aggregate(loss, mask, mode, NORM), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("correction", ["truncated", "masked"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@PROPERTY
@given(numbers, numbers, masks, st.sampled_from([1.0, 2.0, 5.0]))
def test_importance_weights_equal_the_reference(correction, level, logprob, behavior, mask, cap):
    weight, hit = importance_weights(logprob, behavior, mask, cap=cap, correction=correction, level=level)
    difference = logprob.astype(np.float64) - behavior
    if level == "sequence":
        mean = [row[kept].mean() if kept.any() else 0.0 for row, kept in zip(difference, mask)]
        difference = np.broadcast_to(np.array(mean)[:, None], difference.shape)
    ratio = np.exp(difference)
    outside = (ratio > cap) | ((ratio < 1 / cap) & (correction == "masked"))
    expected = np.minimum(ratio, cap) if correction == "truncated" else np.where(outside, 0.0, ratio)
    # Within rounding of a bound, either result is correct.
    clear = (np.abs(ratio - cap) > 1e-5) & (np.abs(ratio - 1 / cap) > 1e-5)
    np.testing.assert_allclose(np.asarray(weight)[clear], expected[clear], rtol=1e-4)
    np.testing.assert_array_equal(np.asarray(hit)[clear], outside[clear])


@pytest.mark.parametrize("correction", ["truncated", "masked"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_equal_log_probabilities_leave_the_loss_as_it_is(correction, level):
    logprob = jnp.asarray(-np.geomspace(1e-6, 50, 64, dtype=np.float32)).reshape(4, 16)
    mask = np.arange(64).reshape(4, 16) % 3 > 0
    options = {"mask": mask, "correction": correction, "level": level}
    weight, hit = losses.importance_weights(logprob, logprob, cap=1.0, **options)
    assert (np.asarray(weight) == 1.0).all()
    assert not np.asarray(hit).any()

    def total(x):
        return jnp.sum(losses.importance_weights(x, logprob - 0.1, cap=2.0, **options)[0])

    assert not np.asarray(jax.grad(total)(logprob)).any()


@PROPERTY
@given(numbers, numbers, numbers, masks)
def test_gspo_has_one_ratio_a_row_and_equals_its_formula(logprob, old, advantages, mask):
    """With one advantage per row and a mean over its tokens: min(s A, clip(s) A), s the geometric mean of ratios."""
    advantages = np.broadcast_to(advantages[:, :1], advantages.shape)
    loss, stats = gspo_loss(logprob, old, advantages, mask, clip_low=0.2, clip_high=0.28)
    for row in range(ROWS):
        kept = mask[row]
        difference = logprob[row].astype(np.float64) - old[row]
        ratio = np.exp(difference[kept].mean()) if kept.any() else 1.0
        expected = oracle.policy_loss(np.log(ratio), 0.0, float(advantages[row, 0]), 0.2, 0.28, None)[0]
        np.testing.assert_allclose(np.asarray(loss)[row][kept], expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(np.asarray(stats.ratio)[row][kept], ratio, rtol=1e-4)


def test_gspo_has_the_gradient_of_its_ratio():
    draw = np.random.default_rng(6)
    old, mask = draw.normal(-1.5, 0.5, (ROWS, LENGTH)), draw.random((ROWS, LENGTH)) < 0.7
    logprob, advantage = jnp.float32(old + draw.normal(0.0, 0.05, old.shape)), draw.normal(size=(ROWS, 1))
    weights = losses.token_weights(mask, "seq_mean_token_mean", losses.count(mask), norm_length=1.0)

    def by_tokens(x):
        of_tokens = jnp.broadcast_to(advantage, x.shape)
        return jnp.sum(losses.gspo_loss(x, old, of_tokens, mask, clip_low=0.5, clip_high=0.5)[0] * weights)

    def by_rows(x):
        return -jnp.mean(jnp.exp(losses.sequence_log_ratio(x, old, mask)) * advantage)

    np.testing.assert_allclose(jax.grad(by_tokens)(logprob), jax.grad(by_rows)(logprob), rtol=1e-4, atol=1e-7)


@PROPERTY
@given(numbers, numbers, numbers)
def test_cispo_keeps_the_gradient_of_every_token(logprob, old, advantages):
    def total(x):
        loss, stats = losses.cispo_loss(x, old, advantages, clip_low=1.0, clip_high=0.28)
        return jnp.sum(loss), (loss, stats)

    gradient, (loss, stats) = jax.grad(total, has_aux=True)(jnp.asarray(logprob))
    ratio = np.exp(logprob.astype(np.float64) - old)
    weight = np.minimum(ratio, 1.28)
    np.testing.assert_allclose(gradient, -advantages * weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(loss, -advantages * weight * logprob, rtol=1e-4, atol=1e-5)
    clear = np.abs(ratio - 1.28) > 1e-5
    np.testing.assert_array_equal(np.asarray(stats.clipped)[clear], (ratio > 1.28)[clear])
