"""Log-probabilities and entropies of tokens from hidden states, and distances between two policies.

Shapes: `N` rows, `K` scored tokens of a row, `D` embedding dimension, `V` vocabulary.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.models import decoder

Measure = Callable[[Float[Array, "M V"], Float[Array, "M V"]], Float[Array, " M"]]
"""Maps logits of a policy and of a reference to distances."""

LOGITS_AT_ONCE = 2**24
"""Largest number of vocabulary logits in memory at a time (64 MiB); more are computed in equal chunks of tokens."""


def logprob_and_entropy(
    policy: decoder.Params,
    hidden: Float[Array, "N K D"],
    token: Int[Array, "N K"],
    temperature: Float[Array, "N _"],
    mask: Bool[Array, "N K"] | None = None,
) -> tuple[Float[Array, "N K"], Float[Array, "N K"]]:
    """Log-probability of a token and entropy of the distribution that it was sampled from.

    `hidden` are the hidden states before the tokens; temperatures are above 0. Tokens outside of `mask` may be skipped,
    and are then 0.
    """

    def score(hidden, token, temperature):
        return _of_logits(decoder.logits(policy, hidden) / temperature[:, None], token)

    return _in_chunks(score, policy, (hidden, token, jnp.broadcast_to(temperature, token.shape)), mask)


def compare(
    policy: decoder.Params,
    hidden: Float[Array, "N K D"],
    reference: decoder.Params,
    ref_hidden: Float[Array, "N K D"],
    temperature: Float[Array, "N _"],
    measure: Measure,
    mask: Bool[Array, "N K"] | None = None,
) -> Float[Array, "N K"]:
    """Distance between the distributions of two decoders over the vocabulary; arguments as `logprob_and_entropy`."""

    def score(hidden, ref_hidden, temperature):
        logits = (decoder.logits(p, h) / temperature[:, None] for p, h in ((policy, hidden), (reference, ref_hidden)))
        return measure(*logits)

    temperature = jnp.broadcast_to(temperature, hidden.shape[:2])
    return _in_chunks(score, policy, (hidden, ref_hidden, temperature), mask)


def _in_chunks(
    score: Callable[..., Any],
    policy: decoder.Params,
    arrays: tuple[jax.Array, ...],
    mask: Bool[Array, "N K"] | None,
) -> Any:
    """Applies a function of M tokens to all N x K tokens, in chunks of at most `LOGITS_AT_ONCE` logits.

    With a mask, its tokens come first, so that chunks without any are skipped.
    """
    shape = arrays[0].shape[:2]
    count = shape[0] * shape[1]
    at_once = max(1, LOGITS_AT_ONCE // policy["embedding"].shape[0])
    chunks = -(-count // at_once)
    length = -(-count // chunks)

    first = None if mask is None or chunks == 1 else jnp.argsort(~mask.reshape(-1), stable=True)

    def split(x):
        flat = x.reshape(count, *x.shape[2:])
        flat = flat if first is None else flat[first]
        # Copies of the last token fill the last chunk, so that all results there are finite.
        missing = jnp.broadcast_to(flat[-1:], (chunks * length - count, *flat.shape[1:]))
        return jnp.concatenate([flat, missing]).reshape(chunks, length, *flat.shape[1:])

    def of_some(some, *chunk):
        # Zeros computed from `some`, so that they vary over devices like scores.
        zeros = jax.tree.map(lambda x: jnp.where(some, 0.0, 0.0).astype(x.dtype), jax.eval_shape(score, *chunk))
        return jax.lax.cond(jnp.any(some), score, lambda *_: zeros, *chunk)

    inputs = tuple(split(x) for x in arrays)
    if chunks == 1:
        scored = score(*(x[0] for x in inputs))
    else:
        if first is not None:
            assert mask is not None
            inputs = (split(mask), *inputs)
        # The backward pass recomputes the logits instead of storing them.
        scored = jax.lax.map(jax.checkpoint(lambda chunk: (score if first is None else of_some)(*chunk)), inputs)

    def joined(x):
        flat = x.reshape(-1)[:count]
        return (flat if first is None else jnp.zeros_like(flat).at[first].set(flat, unique_indices=True)).reshape(shape)

    return jax.tree.map(joined, scored)


@jax.custom_vjp
def _of_logits(logits: Float[Array, "M V"], token: Int[Array, " M"]) -> tuple[Float[Array, " M"], Float[Array, " M"]]:
    """Log-probability of tokens under softmax(`logits`), and its entropy.

    The gradient is explicit because that of `log_softmax` would pass over the vocabulary several more times.
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


def _backward(residuals, cotangents):
    logits, token, normalizer, mean = residuals
    of_logprob, of_entropy = (x[:, None] for x in cotangents)
    probability = jnp.exp(logits - normalizer[:, None])
    # d logprob = 1[token] - p, d entropy = -p (logit - E[logit])
    chosen = jnp.where(jnp.arange(logits.shape[-1]) == token[:, None], of_logprob, 0.0)
    return chosen - probability * (of_logprob + of_entropy * (logits - mean[:, None])), None


_of_logits.defvjp(_forward, _backward)
