import math

import algos_oracles as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algos_oracles import LENGTH, PROPERTY, ROWS, masks, numbers
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl_jax.algos import losses
from agentrl_jax.config.fields import OWN, is_own
from agentrl_jax.config.keys import kind_of, sections_of
from agentrl_jax.config.objectives import Objective

MODES = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]
NORM = 50.0

policy_loss = jax.jit(losses.policy_loss, static_argnames="dual_clip")
value_loss = jax.jit(losses.value_loss, static_argnames="clip")
gspo_loss = jax.jit(losses.gspo_loss)


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


@PROPERTY
@given(numbers, numbers, numbers, masks)
def test_gmpo_is_the_clipped_geometric_mean_of_a_row(logprob, old, advantages, mask):
    weights = losses.token_weights(mask, "seq_mean_token_mean", losses.count(mask), norm_length=1.0)

    def total(x):
        loss, stats = losses.gmpo_loss(x, old, advantages, mask, clip_low=0.4, clip_high=0.7)
        return jnp.sum(loss * weights), (loss, stats)

    gradient, (loss, stats) = jax.jit(jax.grad(total, has_aux=True))(jnp.asarray(logprob))
    apart = logprob.astype(np.float64) - old
    clipped = np.where(advantages > 0, apart > 0.7, apart < -0.4)
    clear = np.minimum(np.abs(apart - 0.7), np.abs(apart + 0.4)) > 1e-5
    kept = np.where(advantages > 0, np.minimum(apart, 0.7), np.maximum(apart, -0.4))
    for row in np.flatnonzero(mask.any(axis=1)):
        here = mask[row]
        of_row = -advantages[row][here].mean(dtype=np.float64) * np.exp(kept[row][here].mean())
        np.testing.assert_allclose(np.asarray(loss)[row], of_row, rtol=1e-4, atol=1e-5)
        slope = of_row / here.sum() / mask.any(axis=1).sum() * (here & ~clipped[row])
        np.testing.assert_allclose(np.asarray(gradient)[row][clear[row]], slope[clear[row]], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(stats.clipped)[clear], clipped[clear])


@pytest.mark.parametrize("tau", [1e-3, 1.0, 1.05, 200.0])
def test_sapo_fades_as_the_ratio_leaves_one(tau):
    apart = np.linspace(-2, 2, 9)
    logprob, old = jnp.float32(apart - 2), np.full(9, -2.0, np.float32)
    for advantage, taus in ((1.5, (tau, 9.0)), (-0.5, (9.0, tau)), (0.0, (9.0, tau))):

        def total(x, advantage=advantage, taus=taus):
            return jnp.sum(losses.sapo_loss(x, old, jnp.full(9, advantage), tau_pos=taus[0], tau_neg=taus[1])[0])

        ratio = np.exp(apart)
        gate = 1 / (1 + np.exp(-tau * (ratio - 1)))
        value, gradient = jax.value_and_grad(total)(logprob)
        assert float(value) == pytest.approx(np.sum(-advantage * 4 / tau * gate), rel=1e-4, abs=1e-6)
        np.testing.assert_allclose(gradient, -advantage * 4 * gate * (1 - gate) * ratio, rtol=1e-3, atol=1e-5)
        # At the limits it is the plain ratio's, and that of tokens whose ratio is 1 alone.
        limit = {1e-3: ratio, 200.0: (apart == 0) * 1.0}.get(tau)
        if limit is not None:
            np.testing.assert_allclose(gradient, -advantage * limit, rtol=1e-4, atol=1e-5)


def divergence_of(kind, here, before):
    if kind == "tv":
        return abs(here - before)
    others = (1 - before) * math.log((1 - before) / (1 - here)) if before < 1 else 0.0
    return before * math.log(before / here) + others


@pytest.mark.parametrize(("kind", "low", "high"), [("tv", 0.1, 0.2), ("kl", 0.02, 0.05), ("tv", 1.0, 1.0)])
def test_dppo_leaves_out_what_leads_away_from_the_rollout(kind, low, high):
    draw = np.random.default_rng(3)
    before, here = draw.uniform(0.01, 0.99, (2, 400))
    advantages, cap = draw.normal(size=400).astype(np.float32), 3.0
    logprob, old = (jnp.float32(np.log(x)) for x in (here, before))

    def total(x):
        bounds = {"divergence": kind, "clip_low": low, "clip_high": high, "ratio_cap": cap}
        loss, stats = losses.dppo_loss(x, old, advantages, **bounds)
        return jnp.sum(loss), (loss, stats)

    gradient, (loss, stats) = jax.grad(total, has_aux=True)(logprob)
    left_out = np.array(
        [
            divergence_of(kind, p, q) > (high if a > 0 else low) and (p > q if a > 0 else p < q)
            for p, q, a in zip(here, before, advantages)
        ]
    )
    np.testing.assert_array_equal(stats.clipped, left_out)
    assert 20 < left_out.sum() < 300 or low == 1.0
    expected = -advantages * np.minimum(here / before, cap) * ~left_out
    np.testing.assert_allclose(gradient, expected, rtol=1e-4)
    np.testing.assert_allclose(loss, expected * np.log(here), rtol=1e-4, atol=1e-6)


def test_dppo_is_finite_where_a_token_is_certain():
    logprob, old = jnp.float32([0.0, -1e-8, 0.0, -80.0]), jnp.float32([0.0, -80.0, -1e-3, 0.0])
    for kind in ("tv", "kl"):
        bounds = {"divergence": kind, "clip_low": 0.1, "clip_high": 0.1, "ratio_cap": 20.0}
        loss, stats = losses.dppo_loss(logprob, old, jnp.float32([1, 1, 1, -1]), **bounds)
        assert np.isfinite(loss).all()
        assert stats.clipped.tolist() == [False, True, False, True]


OBJECTIVES = {kind_of(part): part for part in sections_of(Objective)}


def test_every_kind_of_objective_has_its_function():
    assert OBJECTIVES.keys() - {OWN} == {kind for kind in losses.OBJECTIVES if not is_own(kind)}


@pytest.mark.parametrize("name", tuple(losses.OBJECTIVES))
def test_every_objective_is_a_policy_gradient_where_nothing_has_changed(name):
    """Also: no gradient but that of the log-probabilities, and a minus where an advantage is positive."""
    draw = np.random.default_rng(4)
    logprob, mask = jnp.float32(draw.uniform(-3, -0.1, (ROWS, LENGTH))), jnp.ones((ROWS, LENGTH), bool)
    advantages = jnp.broadcast_to(jnp.float32(draw.normal(size=(ROWS, 1))), mask.shape)
    weights = losses.token_weights(mask, "seq_mean_token_mean", losses.count(mask), norm_length=1.0)
    rule = OBJECTIVES[name]()

    def total(x, old, advantages):
        inputs = losses.ObjectiveInputs(x, old, old, advantages, mask, jnp.ones(mask.shape))
        return jnp.sum(losses.objective(inputs, rule, rule.traced())[0] * weights)

    of_logprob, *others = jax.grad(total, argnums=(0, 1, 2))(logprob, logprob, advantages)
    np.testing.assert_allclose(of_logprob, -advantages * weights, rtol=1e-5)
    assert not any(np.asarray(other).any() for other in others)


@pytest.mark.parametrize("name", ["ppo", "gspo", "gmpo", "cispo", "dppo_tv", "dppo_kl"])
def test_a_bound_of_an_objective_is_that_of_its_side(name):
    """The probability of each token has risen far, so that a wide upper bound clips nothing, whatever the lower one."""
    old, mask = jnp.full((1, 4), -2.0), jnp.ones((1, 4), bool)
    inputs = losses.ObjectiveInputs(old + 0.5, old, old, jnp.ones((1, 4)), mask, jnp.ones((1, 4)))
    clipped = [
        losses.objective(inputs, OBJECTIVES[name](), {"clip_low": low, "clip_high": high})[1].clipped
        for low, high in ((1e-3, 0.9), (0.9, 1e-3))
    ]
    assert [bool(np.all(x)) for x in clipped] == [False, True]
    assert not np.any(clipped[0])
