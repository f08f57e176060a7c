"""Tokens chosen by entropy or covariance, by brute force, on one device and on parts of the rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algos import token_rules
from agentrl_jax.config.token_rules import ClipCov, KlCov, TopEntropy
from agentrl_jax.parallel.shards import Shards

RNG = np.random.default_rng(0)
MASK = RNG.random((6, 5)) < 0.8
LOGPROB = -RNG.random((6, 5)).astype(np.float32)
ADVANTAGE = RNG.normal(size=(6, 5)).astype(np.float32)
ENTROPY = RNG.normal(size=(6, 5)).astype(np.float32)  # negative numbers too: the order of all floats counts
DRAWS = RNG.integers(0, 2**32, (6, 5), dtype=np.uint32)
NUMBER = int(MASK.sum())
ARRAYS = dict(zip(("entropy", "logprob", "advantage", "draws"), (ENTROPY, LOGPROB, ADVANTAGE, DRAWS)))


def chosen(rule, mask=MASK, **changes):
    arrays = jax.tree.map(jnp.asarray, ARRAYS | changes)
    return np.asarray(token_rules.chosen_tokens(rule, rule.traced(), jnp.asarray(mask), **arrays))


def largest(values, mask, number):
    """Where the largest values of a mask are, by sorting them."""
    least = np.sort(values[mask])[::-1][number - 1]
    return mask & (values >= least)


def covariance():
    return (LOGPROB - LOGPROB[MASK].mean()) * (ADVANTAGE - ADVANTAGE[MASK].mean())


@pytest.mark.parametrize("share", [1 / NUMBER, 0.3, 0.99])
def test_the_tokens_of_largest_entropy_are_trained(share):
    number = max(round(share * NUMBER), 1)
    np.testing.assert_array_equal(chosen(TopEntropy(share=share)), largest(ENTROPY, MASK, number))
    np.testing.assert_array_equal(chosen(KlCov(share=share)), largest(covariance(), MASK, number))


def test_of_equal_tokens_at_the_last_place_all_are_chosen_and_signs_of_zero_are_equal():
    equal = np.where(np.arange(30).reshape(6, 5) % 2, np.float32(0.0), np.float32(-0.0))
    np.testing.assert_array_equal(chosen(TopEntropy(share=0.1), entropy=equal), MASK)


def test_tokens_without_a_gradient_are_drawn_between_the_bounds():
    between = MASK & (covariance() >= 0.05) & (covariance() <= 0.4)
    rule = ClipCov(low=0.05, high=0.4, share=0.1)
    found = chosen(rule)
    np.testing.assert_array_equal(found, largest(DRAWS, between, round(0.1 * NUMBER)))
    assert 0 < found.sum() < between.sum()
    np.testing.assert_array_equal(chosen(rule.replace(share=1.0)), between)
    assert not chosen(rule.replace(low=50.0, high=60.0)).any()


@pytest.mark.parametrize("rule", [TopEntropy(), ClipCov(low=-1.0), KlCov()])
def test_nothing_is_chosen_where_no_token_was_sampled(rule):
    assert not chosen(rule, mask=np.zeros_like(MASK)).any()


def test_devices_choose_together():
    class Devices(Shards):
        def sum(self, tree):
            return jax.lax.psum(tree, "devices")

    rule = KlCov(share=0.8)  # of more tokens than one device has
    parts = [jnp.asarray(x).reshape(2, 3, 5) for x in (MASK, LOGPROB, ADVANTAGE)]

    def on_a_device(mask, logprob, advantage):
        arrays = {"logprob": logprob, "advantage": advantage}
        return token_rules.chosen_tokens(rule, rule.traced(), mask, **arrays, devices=Devices())

    found = jax.vmap(on_a_device, axis_name="devices")(*parts)
    np.testing.assert_array_equal(np.asarray(found).reshape(6, 5), chosen(rule))


def test_losses_of_chosen_tokens_are_kept_dropped_or_raised():
    loss, now, before = jnp.ones((1, 4)), jnp.log(jnp.array([[0.5, 0.25, 0.5, 0.5]])), jnp.log(jnp.full((1, 4), 0.5))
    picked = jnp.array([[False, True, True, False]])

    def changed(rule, now=now):
        return token_rules.changed_loss(loss, picked, now, before, rule, rule.traced())

    np.testing.assert_array_equal(changed(TopEntropy()), [[0, 1, 1, 0]])
    np.testing.assert_array_equal(changed(ClipCov()), [[1, 0, 0, 1]])
    np.testing.assert_allclose(changed(KlCov(coef=0.5)), [[1, 1 + 0.5 * np.log(2), 1, 1]], atol=1e-3)
    slope = jax.grad(lambda now: changed(KlCov(coef=0.5), now).sum())(now)
    np.testing.assert_allclose(slope, [[0, -0.5, 0, 0]], atol=1e-3)  # away from before; none where nothing has changed
