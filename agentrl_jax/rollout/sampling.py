"""Samples one token per row, each with its own key, and scores tokens."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from agentrl_jax.models.decoder import at_token


def sample(
    keys: Key[Array, " B"], logits: Float[Array, "B V"], temperature: Float[Array, " B"]
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """Samples tokens with the Gumbel-max trick, argmax(logits / temperature + noise), and scores them as `score` does.

    Temperature 0 takes the largest logit.
    """
    greedy = temperature <= 0
    scaled = logits / jnp.where(greedy, 1.0, temperature)[:, None]
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:], jnp.float32))(keys)
    perturbed = scaled + jnp.where(greedy[:, None], 0.0, noise)
    token = jax.lax.platform_dependent(perturbed, cpu=_first_largest, default=lambda x: jnp.argmax(x, axis=-1))
    token = token.astype(jnp.int32)
    return token, score(logits, temperature, token)


def _first_largest(x: Float[Array, "B V"]) -> Int[Array, " B"]:
    """`jnp.argmax` over the vocabulary as two plain reductions; a CPU computes one of pairs number by number."""
    smaller = x < jnp.max(x, axis=-1, keepdims=True)
    return jnp.min(jnp.where(smaller, x.shape[-1], jnp.arange(x.shape[-1])), axis=-1)


def score(logits: Float[Array, "B V"], temperature: Float[Array, " B"], token: Int[Array, " B"]) -> Float[Array, " B"]:
    """Log-probability of tokens under softmax(logits / temperature); 0 where greedy, as the token is certain."""
    greedy = temperature <= 0
    scaled = logits / jnp.where(greedy, 1.0, temperature)[:, None]
    highest = jnp.max(scaled, axis=-1)
    # As `jax.nn.log_softmax` computes it, but of one token, so that the vocabulary is passed over once less.
    total = jnp.sum(jnp.exp(scaled - highest[:, None]), axis=-1)
    logprob = at_token(scaled, token) - highest - jnp.log(total)
    return jnp.where(greedy, 0.0, logprob)
