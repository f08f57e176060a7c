"""What the keys of a run are for. Every key follows from the seed, a purpose and, in learning, the iteration."""

import jax

INIT, DEMONSTRATIONS, IMITATION, ROLLOUT, UPDATE = range(5)
"""Purposes; each is folded into the seed's key."""


def of_iteration(key: jax.Array, purpose: int, iteration: int) -> jax.Array:
    """The key of ROLLOUT or UPDATE in an iteration, counted from 0; `key` is the seed's."""
    return jax.random.fold_in(jax.random.fold_in(key, purpose), iteration)
