"""Keeps loops that contain collectives from running concurrently on simulated CPU devices.

XLA on CPU (jaxlib 0.10) lets a device start a collective as soon as the previous ones have started, and a loop counts
as started once it has been launched. All collectives of a `jax.shard_map` use one channel id, so a collective inside
the loop may be matched with one outside it: devices then deadlock or sum unrelated values. Only a data dependency
enforces an order, so this module adds one. Other platforms execute in order anyway, and nothing is added there.
"""

from typing import Any

import jax
import jax.numpy as jnp


def after(done: Any, tree: Any) -> Any:
    """`tree`, made to depend on every leaf of `done`, so that it is not read before they are computed."""
    return jax.lax.platform_dependent(done, tree, cpu=_after_on_cpu, default=lambda _, tree: tree)


@jax.custom_vjp
def ordered(first: Any, second: Any) -> tuple[Any, Any]:
    """Both trees; the second waits for the first, and in the backward pass the first gradient for the second."""
    return first, after(first, second)


def _forward(first, second):
    return (first, after(first, second)), None


def _backward(_, gradients):
    first, second = gradients
    return after(second, first), second


ordered.defvjp(_forward, _backward)


def _after_on_cpu(done: Any, tree: Any) -> Any:
    """A select that always returns `tree`, which the compiler cannot know; it would remove an optimization barrier."""
    entries = [x[(0,) * x.ndim] for x in jax.tree.leaves(done) if x.dtype != jax.dtypes.float0 and x.size]
    bits = sum((jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32) for x in entries), jnp.uint32(0))
    never = jax.lax.population_count(bits) > bits.dtype.itemsize * 8
    return jax.tree.map(lambda x: x if x.dtype == jax.dtypes.float0 else jnp.where(never, jnp.zeros_like(x), x), tree)
