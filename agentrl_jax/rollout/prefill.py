"""Prefill of what the model reads before it responds: task prefixes (once for all episodes) and observations.

Shapes: `B` rows, `K` tasks, `S` cache positions, `P` tokens of the longest prefix, `O` observation tokens, `D`
embedding dimension.
"""

import jax
import jax.numpy as jnp

from agentrl_jax.models import decoder
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.rollout.envs.batched_env import BatchedEnv


def prefill_prefixes(params: decoder.Params, model: DecoderConfig, batched_env: BatchedEnv) -> decoder.KVCache:
    """Keys and values of the P prefix positions of every task, one row per task.

    Args:
        params: parameters of the policy from `decoder.prepare_for_decode`.
        model: shape of the policy.
        batched_env: has the prefixes of the K tasks, i32[K, P].

    Returns:
        A cache of K rows and P positions.
    """
    tasks, length = batched_env.prefix.shape
    cache = decoder.init_cache(model, tasks, length)
    if not length:
        return cache
    prefix, count = jnp.asarray(batched_env.prefix), jnp.asarray(batched_env.prefix_length)
    return decoder.forward_with_cache(params, model, cache, prefix, jnp.zeros_like(count), count)[1]


def write_prefix(
    cache: decoder.KVCache, prefixes: decoder.KVCache, task: jax.Array, rows: jax.Array
) -> decoder.KVCache:
    """Writes the task prefix to the start of some rows of a cache.

    Args:
        cache: of B rows and S positions.
        prefixes: from `prefill_prefixes`.
        task: i32[B] task of each row.
        rows: bool[B] rows to write; the others keep every bit.

    Returns:
        The new cache of B rows and S positions.
    """

    def write(buffer: jax.Array, prefix: jax.Array) -> jax.Array:
        begun = jnp.where(rows[:, None, None, None], prefix[task], buffer[:, :, : prefix.shape[2]])
        return jax.lax.dynamic_update_slice_in_dim(buffer, begun, 0, axis=2)

    return jax.tree.map(write, cache, prefixes)


def chunked_prefill(
    params: decoder.Params,
    model: DecoderConfig,
    cache: decoder.KVCache,
    tokens: jax.Array,
    start: jax.Array,
    length: jax.Array,
    size: int,
) -> tuple[jax.Array, decoder.KVCache]:
    """Runs the model on the first tokens of every row, in chunks of `size` tokens until the longest row is read.

    Args:
        params: parameters of the policy from `decoder.prepare_for_decode`.
        model: shape of the policy.
        cache: of B rows.
        tokens: i32[B, O]; the first `length` tokens of a row are read.
        start: i32[B] cache position of the first token.
        length: i32[B], at most O; a row with 0 reads nothing, and its hidden state is meaningless.
        size: tokens of a chunk; 0, or O and more, for all O at once.

    Returns:
        The hidden state [B, D] of the last token that each row reads, and the new cache.
    """
    if not 0 < size < tokens.shape[1]:
        hidden, cache = decoder.forward_with_cache(params, model, cache, tokens, start, length)
        return _last(hidden, length), cache
    tokens = jnp.pad(tokens, ((0, 0), (0, -tokens.shape[1] % size)))

    def read(number, cache):
        part = jax.lax.dynamic_slice_in_dim(tokens, number * size, size, axis=1)
        count = jnp.clip(length - number * size, 0, size)
        hidden, cache = decoder.forward_with_cache(params, model, cache, part, start + number * size, count)
        return count, _last(hidden, count), cache

    def go_on(carry):
        number, last, cache = carry
        count, hidden, cache = read(number, cache)
        return number + 1, jnp.where(count[:, None] > 0, hidden, last), cache

    hidden = jax.eval_shape(read, 0, cache)[1]
    # Computed from `length`, so that it varies over devices like the value that replaces it.
    nothing = jnp.broadcast_to(0 * length[:, None], hidden.shape).astype(hidden.dtype)
    longest = jnp.max(length)
    _, last, cache = jax.lax.while_loop(lambda c: c[0] * size < longest, go_on, (jnp.int32(0), nothing, cache))
    return last, cache


def _last(hidden: jax.Array, length: jax.Array) -> jax.Array:
    """Hidden state [B, D] of the last real token of each row of a chunk [B, C, D]."""
    return jnp.take_along_axis(hidden, jnp.maximum(length - 1, 0)[:, None, None], axis=1)[:, 0]
