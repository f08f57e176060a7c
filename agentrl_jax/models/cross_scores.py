"""Log-probabilities of many responses after one context, which is processed only once.

Shapes: `N` responses of at most `L` tokens, `S` tokens of the context, `D` embedding dimension.
"""

import jax
import jax.numpy as jnp

from agentrl_jax.models import decoder
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.models.token_scores import logprob_and_entropy


def logprobs_after(
    params: decoder.Params,
    config: DecoderConfig,
    context: jax.Array,
    context_length: jax.Array,
    responses: jax.Array,
    length: jax.Array,
    temperature: jax.Array,
) -> jax.Array:
    """Log-probability of every token of N responses, each following the same context.

    Needs the memory of a cache of N rows with S + L positions.

    Args:
        params: parameters from `decoder.prepare_for_decode`.
        config: shape of the decoder.
        context: i32[S], padded on the right.
        context_length: i32[] number of tokens of the context, at least 1.
        responses: i32[N, L], padded on the right.
        length: i32[N] number of tokens of each response.
        temperature: f32[N]; 0 is treated as 1.

    Returns:
        f32[N, L]; 0 beyond the length.
    """
    rows, size = responses.shape
    cache = decoder.init_cache(config, 1, context.shape[0] + size)
    start = jnp.zeros(1, jnp.int32)
    hidden, cache = decoder.forward_with_cache(params, config, cache, context[None], start, context_length[None])
    last = jax.lax.dynamic_index_in_dim(hidden, context_length - 1, axis=1)
    cache = jax.tree.map(lambda x: jnp.repeat(x, rows, axis=0), cache)
    hidden, _ = decoder.forward_with_cache(params, config, cache, responses, jnp.full(rows, context_length), length)
    before = jnp.concatenate([jnp.repeat(last, rows, axis=0), hidden[:, :-1]], axis=1)
    temperature = jnp.where(temperature > 0, temperature, 1.0)
    logprob, _ = logprob_and_entropy(params, before, responses, temperature)
    return jnp.where(jnp.arange(size) < length[:, None], logprob, 0.0)
