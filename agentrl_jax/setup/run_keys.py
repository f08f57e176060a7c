"""What the keys of a run are for. Every key follows from the seed, a purpose and, in learning, the iteration."""

import jax

INIT, DEMONSTRATIONS, IMITATION, ROLLOUT, UPDATE, MEASUREMENT, ROLL_BACK = range(7)
"""Purposes; each is folded into the seed's key."""


def after_roll_backs(key: jax.Array, count: int) -> jax.Array:
    """What stands for the seed's key once the run has gone back `count` times, so that other episodes are drawn."""
    return jax.random.fold_in(jax.random.fold_in(key, ROLL_BACK), count) if count else key


def of_iteration(key: jax.Array, purpose: int, iteration: int) -> jax.Array:
    """The key of ROLLOUT, UPDATE or MEASUREMENT in an iteration, from 0; `key` is that of `after_roll_backs`."""
    return jax.random.fold_in(jax.random.fold_in(key, purpose), iteration)
