"""Random keys of episodes.

A rollout's key is `fold_in(seed, iteration)`. From it, by `fold_in`: group -> level; group -> member -> noise of the
environment -> primitive action; group -> member -> turn -> token. No key depends on the slot that plays the episode.
Another attempt of an episode has other noise: environment -> attempt -> primitive action. The key of a numbered level
depends on its number alone, so that it can be played again.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from agentrl_jax.rollout.trajectory import EpisodeIds

_LEVEL, _MEMBER, _NOISE, _SHARED_NOISE, _SAMPLE = range(5)
_NUMBERED = 0x1E7E15
"""Seed of the keys of numbered levels."""
FIRST_NUMBERED = -2
"""`EpisodeIds.level` of the numbered level 0; that of number n is n less."""
_NEXT_ATTEMPT = 2**32 - 1  # no number of a primitive action


@jax.jit
def level_key(key: Key[Array, ""], ids: EpisodeIds) -> Key[Array, " B"]:
    """Key of each row's level; equal within a group."""
    drawn, numbered = _of_group(key, ids, _LEVEL), numbered_level_key(FIRST_NUMBERED - ids.level)
    return jnp.where(ids.level <= FIRST_NUMBERED, numbered, drawn)


def numbered_level_key(number: Int[Array, " B"]) -> Key[Array, " B"]:
    """Key of the levels with these numbers, from 0."""
    base = jax.random.key(_NUMBERED)
    return jax.vmap(lambda n: jax.random.fold_in(base, n))(number)


@functools.partial(jax.jit, static_argnames="shared")
def noise_key(key: Key[Array, ""], ids: EpisodeIds, *, shared: bool) -> Key[Array, " B"]:
    """Key of each row's environment noise.

    With `shared`, all members of a group get the same noise at the same primitive action, as in RAGEN.
    """
    return _of_group(key, ids, _SHARED_NOISE) if shared else _of_member(key, ids, _NOISE)


def action_key(noise_key: Key[Array, ""], number: Int[Array, ""]) -> Key[Array, ""]:
    """Key of the environment's transition for primitive action `number` of one episode."""
    return jax.random.fold_in(noise_key, number)


def retry_noise_key(noise_key: Key[Array, " B"]) -> Key[Array, " B"]:
    """Key of each row's environment noise in the attempt after the one that has `noise_key`."""
    return jax.vmap(lambda key: jax.random.fold_in(key, jnp.uint32(_NEXT_ATTEMPT)))(noise_key)


def sample_key(key: Key[Array, ""], ids: EpisodeIds) -> Key[Array, " B"]:
    """Key from which the tokens of each row are sampled; see `token_key`."""
    return _of_member(key, ids, _SAMPLE)


def token_key(sample_keys: Key[Array, " B"], turn: Int[Array, " B"], token: Int[Array, " B"]) -> Key[Array, " B"]:
    """Key of token number `token` of turn `turn` of each row."""
    return jax.vmap(lambda key, t, i: jax.random.fold_in(jax.random.fold_in(key, t), i))(sample_keys, turn, token)


def _of_group(key: Key[Array, ""], ids: EpisodeIds, use: int) -> Key[Array, " B"]:
    return jax.vmap(lambda group: jax.random.fold_in(jax.random.fold_in(key, group), use))(ids.group)


def _of_member(key: Key[Array, ""], ids: EpisodeIds, use: int) -> Key[Array, " B"]:
    def member_key(group, member):
        return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, group), _MEMBER), member)

    return jax.vmap(lambda member: jax.random.fold_in(member, use))(jax.vmap(member_key)(ids.group, ids.member))
