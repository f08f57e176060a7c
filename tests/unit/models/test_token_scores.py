"""Scores of tokens and distances between two policies, from whole logits; with chunks and masks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_up import MODEL, fresh_state

from agentrl_jax.algos import kl
from agentrl_jax.models import actor_critic, decoder, token_scores

TOKENS = jax.random.randint(jax.random.key(3), (3, 7), 0, MODEL.decoder.vocab_size)
POSITION = jnp.array([[1, 2, 6], [3, 4, 5], [6, 1, 1]])
TEMPERATURE = jnp.array([1.0, 0.5, 0.0])
PARAMS = fresh_state().params
OTHER = jax.tree.map(lambda x: 0.5 * x, PARAMS["policy"])


@functools.partial(jax.jit, static_argnames="chunked")
def scored(params, other, mask=None, *, chunked=False):
    return actor_critic.score_tokens(params, MODEL, TOKENS, POSITION, TEMPERATURE, (other, kl.full), mask)


def log_probabilities(policy):
    """Of the whole vocabulary before each token; a temperature of 0 counts as 1."""
    logits = decoder.logits(policy, decoder.forward(policy, MODEL.decoder, TOKENS))
    before = jnp.take_along_axis(logits, POSITION[..., None] - 1, axis=1)
    return jax.nn.log_softmax(before / jnp.where(TEMPERATURE > 0, TEMPERATURE, 1.0)[:, None, None])


def divergence(policy, other):
    of_policy, of_other = log_probabilities(policy), jax.lax.stop_gradient(log_probabilities(other))
    return jnp.sum(jnp.exp(of_policy) * (of_policy - of_other), axis=-1)


@pytest.mark.parametrize("at_once", [10**6, 2 * MODEL.decoder.vocab_size])
def test_scores_are_those_of_whole_logits(at_once, monkeypatch):
    monkeypatch.setattr(token_scores, "LOGITS_AT_ONCE", at_once)
    whole = log_probabilities(PARAMS["policy"])
    found = scored(PARAMS, OTHER, chunked=at_once < 10**6)
    token = jnp.take_along_axis(TOKENS, POSITION, axis=1)
    np.testing.assert_allclose(found.logprob, jnp.take_along_axis(whole, token[..., None], axis=-1)[..., 0], atol=1e-5)
    np.testing.assert_allclose(found.entropy, -jnp.sum(jnp.exp(whole) * whole, axis=-1), atol=1e-5)
    np.testing.assert_allclose(found.distance, divergence(PARAMS["policy"], OTHER), atol=1e-5)
    mask = jnp.array([[True, False, True], [False, False, False], [True, True, False]])
    some = scored(PARAMS, OTHER, mask, chunked=at_once < 10**6)
    for name in ("logprob", "entropy", "distance"):
        np.testing.assert_allclose(getattr(some, name)[mask], getattr(found, name)[mask], atol=1e-6)


def test_the_other_policy_gets_no_gradient():
    def total(policy, other):
        return jnp.sum(scored({**PARAMS, "policy": policy}, other).distance)

    found, none = jax.jit(jax.grad(total, argnums=(0, 1)))(PARAMS["policy"], OTHER)
    expected = jax.jit(jax.grad(lambda policy: jnp.sum(divergence(policy, OTHER))))(PARAMS["policy"])
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        np.testing.assert_allclose(x, y, atol=1e-4)
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(none))
