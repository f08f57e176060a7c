import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_up import MODEL, fresh_state

from agentrl_jax.algos import kl
from agentrl_jax.models import actor_critic, cached_decoder, decoder, token_scores
from agentrl_jax.models.cross_scores import logprobs_after

TOKENS = jax.random.randint(jax.random.key(3), (3, 7), 0, MODEL.decoder.vocab_size)
POSITION = jnp.array([[1, 2, 6], [3, 4, 5], [6, 1, 1]])
TEMPERATURE = jnp.array([1.0, 0.5, 0.0])
MASK = jnp.array([[True, False, True], [False, False, False], [True, True, False]])
WEIGHT = jnp.arange(1.0, 10.0).reshape(3, 3)
PARAMS = fresh_state().params
OTHER = jax.tree.map(lambda x: 0.5 * x, PARAMS["policy"])


def scored(policy, other, mask=None):
    params = {**PARAMS, "policy": policy}
    found = actor_critic.score_tokens(params, MODEL, TOKENS, POSITION, TEMPERATURE, (other, kl.full), mask)
    return found.logprob, found.entropy, found.distance


def of_whole_logits(policy, other):
    """From the log-probabilities of the whole vocabulary before each token; a temperature of 0 counts as 1."""

    def log_probabilities(policy):
        logits = decoder.logits(policy, decoder.forward(policy, MODEL.decoder, TOKENS))
        before = jnp.take_along_axis(logits, POSITION[..., None] - 1, axis=1)
        return jax.nn.log_softmax(before / jnp.where(TEMPERATURE > 0, TEMPERATURE, 1.0)[:, None, None])

    whole, of_other = log_probabilities(policy), jax.lax.stop_gradient(log_probabilities(other))
    token = jnp.take_along_axis(TOKENS, POSITION, axis=1)
    logprob = jnp.take_along_axis(whole, token[..., None], axis=-1)[..., 0]
    return logprob, -jnp.sum(jnp.exp(whole) * whole, axis=-1), jnp.sum(jnp.exp(whole) * (whole - of_other), axis=-1)


def with_gradients(form):
    def total(policy, other):
        found = form(policy, other)
        return sum(jnp.sum(WEIGHT**power * x) for power, x in enumerate(found)), found

    return jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))(PARAMS["policy"], OTHER)


@functools.cache
def expected():
    return with_gradients(of_whole_logits)


@pytest.mark.parametrize("at_once", [10**6, 2 * MODEL.decoder.vocab_size])
def test_scores_are_those_of_whole_logits(at_once, monkeypatch):
    """Two tokens at a time, with a last chunk that is not full; the other policy gets no gradient."""
    monkeypatch.setattr(token_scores, "LOGITS_AT_ONCE", at_once)
    (gradient, none), found = with_gradients(lambda *policies: scored(*policies))
    (wanted, _), scores = expected()
    chex.assert_trees_all_close(found, scores, atol=1e-5)
    chex.assert_trees_all_close(gradient, wanted, rtol=1e-4, atol=5e-4)
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(none))
    alone = jax.jit(actor_critic.logprobs, static_argnums=1)(PARAMS, MODEL, TOKENS, POSITION, TEMPERATURE)
    np.testing.assert_allclose(alone, found[0], rtol=1e-5)
    masked = jax.jit(lambda *policies: scored(*policies, MASK))(PARAMS["policy"], OTHER)
    for some, all_of_them in zip(masked, found):
        np.testing.assert_allclose(some[MASK], all_of_them[MASK], atol=1e-6)


def test_responses_of_greedy_play_are_scored_as_at_temperature_1():
    shape = MODEL.decoder
    params = cached_decoder.prepare_for_decode(PARAMS["policy"], shape)
    responses, length = jnp.arange(6).reshape(2, 3) % 5, jnp.array([3, 2])
    score = jax.jit(functools.partial(logprobs_after, params, shape, jnp.arange(1, 5), jnp.int32(4), responses, length))
    found = score(jnp.array([0.0, 1.0]))
    np.testing.assert_array_equal(found, score(jnp.ones(2)))
    assert np.isfinite(found).all()
    assert np.any(found != score(jnp.array([0.5, 1.0])))
