"""Log-probabilities and entropies of tokens from hidden states, and distances between two policies.

Shapes: `N` rows, `K` scored tokens of a row, `D` embedding dimension, `V` vocabulary.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.algos.vocab_sums import highest, total
from agentrl_jax.models import decoder
from agentrl_jax.models.vocabulary import Vocabulary

Measure = Callable[[Float[Array, "M V"], Float[Array, "M V"], str], Float[Array, " M"]]
"""Maps logits of a policy and of a reference to distances; the last argument is `Vocabulary.axis_name`."""

LOGITS_AT_ONCE = 2**24
"""Largest number of vocabulary logits in memory at a time (64 MiB); more are computed in equal chunks of tokens."""


def logprob_and_entropy(
    head: decoder.Params,
    vocabulary: Vocabulary,
    hidden: Float[Array, "N K D"],
    token: Int[Array, "N K"],
    temperature: Float[Array, "N _"],
    mask: Bool[Array, "N K"] | None = None,
) -> tuple[Float[Array, "N K"], Float[Array, "N K"]]:
    """Log-probability of a token and entropy of the distribution that it was sampled from.

    `head` are the parameters that `decoder.logits` reads. `hidden` are the hidden states before the tokens;
    temperatures are above 0. Tokens outside of `mask` may be skipped, and are then 0.
    """

    def score(*own):
        hidden, token, temperature = vocabulary.all_gather(own)
        scores = _of_logits(vocabulary, _logits(head, vocabulary, hidden) / temperature[:, None], token)
        return vocabulary.own(scores)

    return _in_chunks(score, vocabulary, (hidden, token, jnp.broadcast_to(temperature, token.shape)), mask)


def compare(
    head: decoder.Params,
    vocabulary: Vocabulary,
    hidden: Float[Array, "N K D"],
    ref_head: decoder.Params,
    ref_hidden: Float[Array, "N K D"],
    temperature: Float[Array, "N _"],
    measure: Measure,
    mask: Bool[Array, "N K"] | None = None,
) -> Float[Array, "N K"]:
    """Distance between the distributions of two decoders over the vocabulary; arguments as `logprob_and_entropy`."""

    def score(*own):
        hidden, ref_hidden, temperature = vocabulary.all_gather(own)
        logits = _logits(head, vocabulary, hidden) / temperature[:, None]
        ref_logits = _logits(ref_head, vocabulary, ref_hidden) / temperature[:, None]
        return vocabulary.own(measure(logits, ref_logits, vocabulary.axis_name))

    temperature = jnp.broadcast_to(temperature, hidden.shape[:2])
    return _in_chunks(score, vocabulary, (hidden, ref_hidden, temperature), mask)


def _in_chunks(
    score: Callable[..., Any],
    vocabulary: Vocabulary,
    arrays: tuple[jax.Array, ...],
    mask: Bool[Array, "N K"] | None,
) -> Any:
    """Applies a function of M tokens to all N x K tokens, in chunks of at most `LOGITS_AT_ONCE` logits.

    With a mask, its tokens come first, so that chunks without any are skipped.
    """
    shape = arrays[0].shape[:2]
    count = shape[0] * shape[1]
    at_once = max(1, LOGITS_AT_ONCE // vocabulary.size)
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
        return jax.lax.cond(vocabulary.any(some), score, lambda *_: zeros, *chunk)

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


def _logits(head: decoder.Params, vocabulary: Vocabulary, hidden: Float[Array, "M D"]) -> Float[Array, "M V"]:
    return vocabulary.without_padding(decoder.logits(head, hidden))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _of_logits(
    vocabulary: Vocabulary, logits: Float[Array, "M V"], token: Int[Array, " M"]
) -> tuple[Float[Array, " M"], Float[Array, " M"]]:
    """Log-probability of tokens under softmax(`logits`), and its entropy.

    The gradient is explicit because that of `log_softmax` would pass over the vocabulary several more times.
    """
    return _forward(vocabulary, logits, token)[0]


def _forward(vocabulary, logits, token):
    axis_name = vocabulary.axis_name
    largest = highest(logits, axis_name)
    shifted = logits - largest[:, None]
    powers = jnp.exp(shifted)
    mass = total(powers, axis_name)
    mean = total(powers * shifted, axis_name) / mass
    # A comparison instead of an index, so that devices that hold shards of the vocabulary need not gather it.
    chosen = total(jnp.where(vocabulary.chosen(token, logits.shape[-1]), shifted, 0.0), axis_name)
    scores = chosen - jnp.log(mass), jnp.log(mass) - mean
    return scores, (logits, token, largest + jnp.log(mass), largest + mean)


def _backward(vocabulary, residuals, cotangents):
    logits, token, normalizer, mean = residuals
    of_logprob, of_entropy = (x[:, None] for x in cotangents)
    probability = jnp.exp(logits - normalizer[:, None])
    # d logprob = 1[token] - p, d entropy = -p (logit - E[logit])
    chosen = jnp.where(vocabulary.chosen(token, logits.shape[-1]), of_logprob, 0.0)
    return chosen - probability * (of_logprob + of_entropy * (logits - mean[:, None])), None


_of_logits.defvjp(_forward, _backward)
