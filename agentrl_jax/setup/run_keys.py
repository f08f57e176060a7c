"""The PRNG keys of a run. Every key is derived from the seed, a purpose and, in learning, the iteration."""

import jax

INIT, DEMONSTRATIONS, IMITATION, ROLLOUT, UPDATE, MEASUREMENT, ROLL_BACK, DAGGER, LEVELS, HINTS, EXPLORE = range(11)
"""Purposes; each is folded into the key of the seed."""


def after_roll_backs(key: jax.Array, count: int) -> jax.Array:
    """The key that replaces the key of the seed after `count` roll-backs, so that other episodes are sampled."""
    return jax.random.fold_in(jax.random.fold_in(key, ROLL_BACK), count) if count else key


def of_iteration(key: jax.Array, purpose: int, iteration: int) -> jax.Array:
    """The key of an iteration, from 0, for ROLLOUT, UPDATE, MEASUREMENT or LEVELS; `key` is of `after_roll_backs`."""
    return jax.random.fold_in(jax.random.fold_in(key, purpose), iteration)


def of_evaluation(seed: int, split: int) -> jax.Array:
    """The key of levels and sampling of an evaluation, different for each split of the levels."""
    return jax.random.fold_in(jax.random.key(seed), split)
