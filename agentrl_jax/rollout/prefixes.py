"""The prefix of a task, read once for all of its episodes.

Letters: `B` rows, `S` positions of a cache, `P` tokens of the longest prefix.
"""

import jax
import jax.numpy as jnp

from agentrl_jax.models import decoder
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.rollout.world import World


def read_prefixes(params: decoder.Params, model: DecoderConfig, world: World) -> decoder.KVCache:
    """Keys and values of P positions of every task's prefix, a row a task.

    Args:
        params: parameters of the policy from `decoder.unstack`.
        model: its shape.
        world: tells the prefixes.
    """
    tasks, length = world.prefix.shape
    cache = decoder.init_cache(model, tasks, length)
    if not length:
        return cache
    prefix, count = jnp.asarray(world.prefix), jnp.asarray(world.prefix_length)
    return decoder.extend(params, model, cache, prefix, jnp.zeros_like(count), count)[1]


def open_rows(cache: decoder.KVCache, prefixes: decoder.KVCache, task: jax.Array, rows: jax.Array) -> decoder.KVCache:
    """The cache, in which some rows begin with the prefix of their task.

    Args:
        cache: of B rows and S positions.
        prefixes: from `read_prefixes`.
        task: i32[B] task of each row.
        rows: bool[B] rows that begin anew; the others keep every bit.
    """

    def write(buffer: jax.Array, prefix: jax.Array) -> jax.Array:
        begun = jnp.where(rows[:, None, None, None], prefix[task], buffer[:, :, : prefix.shape[2]])
        return jax.lax.dynamic_update_slice_in_dim(buffer, begun, 0, axis=2)

    return jax.tree.map(write, cache, prefixes)
