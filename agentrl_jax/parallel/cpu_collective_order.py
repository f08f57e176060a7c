"""Keeps loops with collectives in them from running at the same time on simulated devices.

XLA on a CPU (jaxlib 0.10) lets a device begin with a collective as soon as those before it have begun, and takes a loop
for begun that has just been started. All collectives of a `jax.shard_map` meet under one number: those inside the loop
and those beside it then find each other, and devices wait for ever or add up what does not belong together. Only what
needs another's result is sure to wait. Other devices run in order anyway, and nothing is added there.
"""

from typing import Any

import jax
import jax.numpy as jnp


def after(done: Any, tree: Any) -> Any:
    """`tree`, which is not read before every leaf of `done` is there."""
    return jax.lax.platform_dependent(done, tree, cpu=_waiting, default=lambda _, tree: tree)


@jax.custom_vjp
def in_turn(first: Any, second: Any) -> tuple[Any, Any]:
    """Both trees; the second waits for the first, and its gradient comes before that of the first goes on."""
    return first, after(first, second)


def _forward(first, second):
    return (first, after(first, second)), None


def _backward(_, gradients):
    first, second = gradients
    return after(second, first), second


in_turn.defvjp(_forward, _backward)


def _waiting(done: Any, tree: Any) -> Any:
    """A choice that always falls on `tree`, which the compiler does not know; it would take a barrier away."""
    numbers = [jnp.ravel(x)[0] for x in jax.tree.leaves(done) if x.dtype != jax.dtypes.float0 and x.size]
    bits = sum((jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32) for x in numbers), jnp.uint32(0))
    never = jax.lax.population_count(bits) > bits.dtype.itemsize * 8
    return jax.tree.map(lambda x: x if x.dtype == jax.dtypes.float0 else jnp.where(never, jnp.zeros_like(x), x), tree)
