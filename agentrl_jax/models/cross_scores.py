"""Log-probabilities of many responses after one context, which is processed only once.

Shapes: `N` responses of at most `L` tokens, `S` tokens of the context, `D` embedding dimension.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from agentrl_jax.models import cached_decoder, decoder
from agentrl_jax.models.kv_cache import init_cache, shared_prefix
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.models.token_scores import logprob_and_entropy
from agentrl_jax.models.vocabulary import Vocabulary


def logprobs_after(
    params: decoder.Params,
    config: DecoderConfig,
    context: Int[Array, " S"],
    context_length: Int[Array, ""],
    responses: Int[Array, "N L"],
    length: Int[Array, " N"],
    temperature: Float[Array, " N"],
) -> Float[Array, "N L"]:
    """Log-probability of every token of N responses, each following the same context; 0 beyond a response's length.

    Needs the memory of a cache of N rows with L positions, and of one with S. `params` are from
    `cached_decoder.prepare_for_decode`; context (at least one token) and responses are padded on the right; a
    temperature of 0 is treated as 1.
    """
    rows, size = responses.shape
    cache = init_cache(config, 1, context.shape[0], block=context.shape[0])
    start = jnp.zeros(1, jnp.int32)
    last, cache = cached_decoder.forward_with_cache(
        params, config, cache, context[None], start, context_length[None], only_last=True
    )
    prefix = shared_prefix(cache, context_length[None], jnp.zeros(rows, jnp.int32))
    cache = init_cache(config, rows, size, block=size)
    start = jnp.full(rows, context_length)
    hidden, _ = cached_decoder.forward_with_cache(params, config, cache, responses, start, length, prefix)
    before = jnp.concatenate([jnp.repeat(last, rows, axis=0), hidden[:, :-1]], axis=1)
    temperature = jnp.where(temperature > 0, temperature, 1.0)
    logprob, _ = logprob_and_entropy(params, Vocabulary(config.vocab_size), before, responses, temperature[:, None])
    return jnp.where(jnp.arange(size) < length[:, None], logprob, 0.0)
