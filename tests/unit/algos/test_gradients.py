"""Gradients of the losses by finite differences, in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from agentrl_jax.algos import kl, losses

ROWS, LENGTH = 3, 5
MODES = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def draw(seed, spread):
    """Log-probabilities, old ones and advantages; no ratio is within 1e-3 of a bound, where no derivative exists."""
    random = np.random.default_rng(seed)
    old = random.normal(-1.5, 0.5, (ROWS, LENGTH))
    logprob = old + random.normal(0.0, spread, old.shape)
    for bound in (0.8, 1.28, 3.0):
        near = np.abs(np.exp(logprob - old) - bound) < 1e-3
        logprob = np.where(near, logprob + 0.01, logprob)
    return tuple(jnp.asarray(x) for x in (logprob, old, random.normal(size=old.shape)))


check = functools.partial(check_grads, order=1, modes=["rev"], atol=1e-5, rtol=1e-5)


def mask():
    return jnp.asarray(np.random.default_rng(5).random((ROWS, LENGTH)) < 0.7)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spread", [0.05, 0.8])
@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_the_clipped_surrogate(mode, spread, dual_clip):
    logprob, old, advantage = draw(0, spread)
    weights = losses.token_weights(mask(), mode, losses.count(mask()), norm_length=7.0)

    def loss(x):
        per_token, _ = losses.policy_loss(x, old, advantage, clip_low=0.2, clip_high=0.28, dual_clip=dual_clip)
        return jnp.sum(per_token * weights)

    check(loss, (logprob,))
    assert not np.asarray(jax.grad(loss)(logprob))[~np.asarray(mask())].any()


def test_the_value_loss():
    values, old, returns = draw(1, 0.8)
    for clip in (None, 0.5):
        check(lambda v, c=clip: jnp.sum(losses.value_loss(v, old, returns, clip=c)[0]), (values,))


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs", "mse"])
def test_the_estimates_of_the_divergence(kind):
    logprob, ref, _ = draw(2, 0.8)
    check(lambda x: jnp.sum(kl.estimate(x, ref, kind)), (logprob,))


def test_the_whole_divergence():
    logits, ref = (jnp.asarray(np.random.default_rng(seed).normal(size=(4, 6))) for seed in (3, 4))
    found = kl.full(logits, ref)
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (np.asarray(logits), np.asarray(ref)))
    np.testing.assert_allclose(found, (p * np.log(p / q)).sum(axis=1), rtol=1e-10)
    check(lambda x: jnp.sum(kl.full(x, ref)), (logits,))
    assert not np.asarray(jax.grad(lambda x: jnp.sum(kl.full(logits, x)))(ref)).any()


def test_the_loss_of_one_ratio_a_row():
    logprob, old, advantage = draw(6, 0.05)
    kept = mask()
    one_a_row = jnp.broadcast_to(advantage[:, :1], advantage.shape)
    weights = losses.token_weights(kept, "seq_mean_token_mean", losses.count(kept), norm_length=1.0)

    def surrogate(x):
        ratio = jnp.exp(losses.sequence_log_ratio(x, old, kept))
        return -jnp.mean(ratio * one_a_row[:, :1])

    def by_tokens(x):
        return jnp.sum(losses.gspo_loss(x, old, one_a_row, kept, clip_low=0.5, clip_high=0.5)[0] * weights)

    check(surrogate, (logprob,))
    np.testing.assert_allclose(jax.grad(by_tokens)(logprob), jax.grad(surrogate)(logprob), rtol=1e-6, atol=1e-9)
