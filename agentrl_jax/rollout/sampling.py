"""Samples one token per row, each with its own key, and scores tokens."""

import jax
import jax.numpy as jnp

from agentrl_jax.models.decoder import at_token


def sample(keys: jax.Array, logits: jax.Array, temperature: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Samples tokens with the Gumbel-max trick: argmax(logits / temperature + noise).

    Args:
        keys: key[B], one per row.
        logits: f32[B, V].
        temperature: f32[B]; 0 takes the largest logit.

    Returns:
        token i32[B]; its log-probability f32[B] under softmax(logits / temperature) (0 where greedy, since the token
        then has probability 1).
    """
    greedy = temperature <= 0
    scaled = logits / jnp.where(greedy, 1.0, temperature)[:, None]
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:], jnp.float32))(keys)
    perturbed = scaled + jnp.where(greedy[:, None], 0.0, noise)
    token = jnp.argmax(perturbed, axis=-1).astype(jnp.int32)
    return token, score(logits, temperature, token)


def score(logits: jax.Array, temperature: jax.Array, token: jax.Array) -> jax.Array:
    """Log-probability f32[B] of tokens i32[B] under softmax(logits / temperature), 0 where greedy; see `sample`."""
    greedy = temperature <= 0
    scaled = logits / jnp.where(greedy, 1.0, temperature)[:, None]
    logprob = at_token(jax.nn.log_softmax(scaled), token)
    return jnp.where(greedy, 0.0, logprob)
