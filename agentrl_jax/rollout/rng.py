"""Random keys of episodes.

A rollout's key is `fold_in(seed, iteration)`. From it, by `fold_in`: group -> level; group -> member -> noise of the
environment; group -> member -> turn -> token. No key depends on the slot that plays the episode.
"""

import jax

from agentrl_jax.rollout.trajectory import EpisodeIds

_LEVEL, _MEMBER, _NOISE, _SHARED_NOISE, _SAMPLE = range(5)


def _group(key: jax.Array, group: jax.Array) -> jax.Array:
    return jax.random.fold_in(key, group)


def level_key(key: jax.Array, ids: EpisodeIds) -> jax.Array:
    """Key of each row's level, key[B]; equal within a group."""
    return jax.vmap(lambda group: jax.random.fold_in(_group(key, group), _LEVEL))(ids.group)


def noise_key(key: jax.Array, ids: EpisodeIds, *, shared: bool) -> jax.Array:
    """Key of each row's environment noise, key[B].

    With `shared`, all members of a group get the same noise at the same primitive action, as in RAGEN.
    """
    if shared:
        return jax.vmap(lambda group: jax.random.fold_in(_group(key, group), _SHARED_NOISE))(ids.group)
    return jax.vmap(lambda member: jax.random.fold_in(member, _NOISE))(_members(key, ids))


def sample_key(key: jax.Array, ids: EpisodeIds) -> jax.Array:
    """Key from which the tokens of each row are sampled, key[B]; see `token_key`."""
    return jax.vmap(lambda member: jax.random.fold_in(member, _SAMPLE))(_members(key, ids))


def token_key(sample_keys: jax.Array, turn: jax.Array, token: jax.Array) -> jax.Array:
    """Key of token number `token` i32[B] of turn `turn` i32[B], key[B]."""
    return jax.vmap(lambda key, t, i: jax.random.fold_in(jax.random.fold_in(key, t), i))(sample_keys, turn, token)


def _members(key: jax.Array, ids: EpisodeIds) -> jax.Array:
    def member_key(group, member):
        return jax.random.fold_in(jax.random.fold_in(_group(key, group), _MEMBER), member)

    return jax.vmap(member_key)(ids.group, ids.member)
