"""Prefill of what the model reads before it responds: task prefixes (once for all episodes) and observations.

Shapes: `B` rows, `K` tasks, `P` tokens of the longest prefix, `O` observation tokens, `C` tokens of a chunk, `D`
embedding dimension.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from agentrl_jax.models import cached_decoder, decoder
from agentrl_jax.models.kv_cache import KVCache, Opening, SharedPrefix, blocks_allowed, init_cache, shared_prefix
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.rollout.engine_config import EngineConfig, stored_length
from agentrl_jax.rollout.envs.batched_env import BatchedEnv

LONGEST_READ_WHOLE = 4096
"""Positions of a row above which unused blocks are skipped in any case: reading them then takes most of a step."""


def empty_cache(model: DecoderConfig, batched_env: BatchedEnv, config: EngineConfig, rows: int) -> KVCache:
    """The cache with which rows start a rollout; see `EngineConfig.skips_blocks`."""
    length, response, turns = stored_length(batched_env, config), config.max_response_tokens, config.max_turns
    whole, read = config.bounds.never_restarts and not config.context.fresh, batched_env.observation_tokens
    # A group stores its first observation once; where slots are refilled, or where a part of the rows is prefilled, the
    # rows of a group are not together.
    if opening := whole and config.group_size > 1 and not config.slots and not config.prefill_rows:
        # The first observation may be short, so that a limited context leaves more for the others. An episode of one
        # turn stores nothing, but the buffers must not be empty.
        turns -= 1
        length = max(min(length, turns * (read + response)), 1)
    block, first, skips = 0, 0, config.skips_blocks or length > LONGEST_READ_WHOLE
    if not skips:
        block = -(-length // min(2, blocks_allowed(length)))
    elif whole and 1 < turns <= blocks_allowed(length):
        # A response and the observation after it; the first observation follows no response.
        block, first = read + response, 0 if opening else read
    cache = init_cache(model, rows, length, response=response, block=block, first=first).replace(skips=skips)
    if not opening:
        return cache
    groups = rows // config.group_size
    blocks = init_cache(model, groups, read, block=read).blocks
    return cache.replace(opening=Opening(tuple(pair for (pair,) in blocks), jnp.zeros(groups, jnp.int32)))


def prefill_prefixes(
    params: decoder.Params, model: DecoderConfig, batched_env: BatchedEnv, task: Int[Array, " B"]
) -> SharedPrefix | None:
    """Keys and values of the prefixes of K tasks, for rows of these tasks; None if all prefixes are empty.

    `params` come from `cached_decoder.prepare_stacked`.
    """
    tasks, length = batched_env.prefix.shape
    if not length:
        return None
    prefix, count = jnp.asarray(batched_env.prefix), jnp.asarray(batched_env.prefix_length)
    cache = init_cache(model, tasks, length, block=length)
    start = jnp.zeros_like(count)
    _, cache = cached_decoder.forward_with_cache(params, model, cache, prefix, start, count, only_last=True)
    return shared_prefix(cache, count, task)


def chunked_prefill(
    params: decoder.Params,
    model: DecoderConfig,
    cache: KVCache,
    tokens: Int[Array, "B O"],
    start: Int[Array, " B"],
    length: Int[Array, " B"],
    size: int,
    prefix: SharedPrefix | None = None,
    rows: Int[Array, " B"] | None = None,
) -> tuple[Float[Array, "B D"], KVCache]:
    """Runs the model on the first `length` tokens of every row, whose cache positions begin at `start`.

    Works in chunks of `size` tokens until the longest row is read; with 0, or O and more, all O at once. Returns the
    hidden state of the last token that each row reads, meaningless where `length` is 0, and the new cache. `params`,
    `prefix` and `rows` are those of `cached_decoder.forward_with_cache`.
    """
    if not 0 < size < tokens.shape[1]:
        last, cache = cached_decoder.forward_with_cache(
            params, model, cache, tokens, start, length, prefix, rows, only_last=True
        )
        return last[:, 0], cache
    tokens = jnp.pad(tokens, ((0, 0), (0, -tokens.shape[1] % size)))

    def read(number, cache):
        part = jax.lax.dynamic_slice_in_dim(tokens, number * size, size, axis=1)
        count = jnp.clip(length - number * size, 0, size)
        last, cache = cached_decoder.forward_with_cache(
            params, model, cache, part, start + number * size, count, prefix, rows, only_last=True
        )
        return count, last[:, 0], cache

    def next_chunk(carry):
        number, last, cache = carry
        count, hidden, cache = read(number, cache)
        return number + 1, jnp.where(count[:, None] > 0, hidden, last), cache

    start_of_loop = jnp.int32(0), _nothing_read(read, length, cache), cache
    longest = jnp.max(length)
    _, last, cache = jax.lax.while_loop(lambda c: c[0] * size < longest, next_chunk, start_of_loop)
    return last, cache


def prefill_by_parts(
    params: decoder.Params,
    model: DecoderConfig,
    cache: KVCache,
    tokens: Int[Array, "B O"],
    start: Int[Array, " B"],
    length: Int[Array, " B"],
    size: int,
    at_once: int,
    prefix: SharedPrefix | None = None,
) -> tuple[Float[Array, "B D"], KVCache]:
    """Like `chunked_prefill`, but for `at_once` rows at a time, the longest first, until the rows with tokens are read.

    Little is computed for padding where few rows have tokens, or where they differ much in length. With 0, or B and
    more, all rows are read at once.
    """
    batch = len(length)
    if not 0 < at_once < batch:
        return chunked_prefill(params, model, cache, tokens, start, length, size, prefix)
    # The last part is filled up with the last row, of which nothing is read a second time.
    order = jnp.pad(jnp.argsort(-length, stable=True), (0, -batch % at_once), mode="edge")
    fresh = jnp.arange(len(order)) < batch

    def read(number, cache):
        rows, new = (jax.lax.dynamic_slice_in_dim(x, number * at_once, at_once) for x in (order, fresh))
        count = jnp.where(new, length[rows], 0)
        own = prefix and prefix.replace(row=prefix.row[rows])
        hidden, cache = chunked_prefill(params, model, cache, tokens[rows], start[rows], count, size, own, rows)
        return jnp.where(count > 0, rows, batch), hidden, cache

    def next_part(carry):
        number, last, cache = carry
        rows, hidden, cache = read(number, cache)
        return number + 1, last.at[rows].set(hidden, mode="drop"), cache

    start_of_loop = jnp.int32(0), _nothing_read(read, length, cache), cache
    pending = jnp.sum(length > 0)
    _, last, cache = jax.lax.while_loop(lambda c: c[0] * at_once < pending, next_part, start_of_loop)
    return last, cache


def _nothing_read(
    read: Callable[[int, KVCache], tuple[jax.Array, jax.Array, KVCache]], length: Int[Array, " B"], cache: KVCache
) -> Float[Array, "B D"]:
    """The hidden states before a loop of `read`, which returns those of some rows second."""
    hidden = jax.eval_shape(read, 0, cache)[1]
    # Computed from `length`, so that it varies over devices like the value that replaces it.
    return jnp.broadcast_to(0 * length[:, None], (len(length), hidden.shape[1])).astype(hidden.dtype)
