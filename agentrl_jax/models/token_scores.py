"""Log-probabilities and entropies of tokens from hidden states.

Letters: `N` rows, `K` scored tokens of a row, `D` width, `V` vocabulary.
"""

import jax
import jax.numpy as jnp

from agentrl_jax.models import decoder

LOGITS_AT_ONCE = 2**24
"""Most vocabulary logits that exist at a time (64 MiB); more of them are made in equal chunks of tokens."""


def logprob_and_entropy(
    policy: decoder.Params, hidden: jax.Array, token: jax.Array, temperature: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of a token and entropy of the distribution that it was drawn from, each f32[N, K].

    Args:
        policy: a decoder's parameters.
        hidden: [N, K, D] states before the tokens.
        token: i32[N, K].
        temperature: f32[N], above 0.
    """
    count = token.size
    at_once = max(1, LOGITS_AT_ONCE // policy["embedding"].shape[0])
    chunks = -(-count // at_once)
    length = -(-count // chunks)

    def score(hidden, token, temperature):
        return _of_logits(decoder.logits(policy, hidden) / temperature[:, None], token)

    def split(x, fill):
        flat = x.reshape(count, *x.shape[2:])
        missing = jnp.full((chunks * length - count, *flat.shape[1:]), fill, x.dtype)
        return jnp.concatenate([flat, missing]).reshape(chunks, length, *flat.shape[1:])

    inputs = (split(hidden, 0), split(token, 0), split(jnp.broadcast_to(temperature[:, None], token.shape), 1))
    if chunks == 1:
        scored = score(*(x[0] for x in inputs))
    else:
        # Logits are made again in the backward pass instead of being kept.
        scored = jax.lax.map(jax.checkpoint(lambda chunk: score(*chunk)), inputs)
    logprob, entropy = (x.reshape(-1)[:count].reshape(token.shape) for x in scored)
    return logprob, entropy


@jax.custom_vjp
def _of_logits(logits: jax.Array, token: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-probability f32[M] of tokens i32[M] under softmax(`logits` [M, V]), and its entropy f32[M].

    The gradient is written out because that of a `log_softmax` passes over the vocabulary several times more.
    """
    return _forward(logits, token)[0]


def _forward(logits, token):
    highest = jnp.max(logits, axis=-1, keepdims=True)
    shifted = logits - highest
    powers = jnp.exp(shifted)
    total = jnp.sum(powers, axis=-1)
    mean = jnp.sum(powers * shifted, axis=-1) / total
    logprob = decoder.at_token(shifted, token) - jnp.log(total)
    return (logprob, jnp.log(total) - mean), (logits, token, highest[:, 0] + jnp.log(total), highest[:, 0] + mean)


def _backward(kept, cotangents):
    logits, token, normaliser, mean = kept
    of_logprob, of_entropy = (x[:, None] for x in cotangents)
    probability = jnp.exp(logits - normaliser[:, None])
    # d logprob = 1[token] - p, d entropy = -p (logit - E[logit])
    chosen = jnp.where(jnp.arange(logits.shape[-1]) == token[:, None], of_logprob, 0.0)
    return chosen - probability * (of_logprob + of_entropy * (logits - mean[:, None])), None


_of_logits.defvjp(_forward, _backward)
