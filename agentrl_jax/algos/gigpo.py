"""Advantages of turns relative to other turns of the group that were taken in the same state (GiGPO, HGPO).

Shapes: `E` episodes, `T` turns. A state is identified by a 64-bit hash, u32[E, T, 2]: the environment's hash, or that
of the tokens that the model read (`hash_tokens`). Two states with equal hashes are treated as one.
"""

import jax
import jax.numpy as jnp

from agentrl_jax.algos.rewards import normalize

_FACTORS = (0x01000193, 0x85EBCA6B)
_SALT = 0x9E3779B9


def returns_to_go(rewards: jax.Array, gamma: jax.Array | float) -> jax.Array:
    """Discounted return f32[E, T] from each turn on, for turn rewards f32[E, T]; `gamma` is the discount per turn."""

    def step(later, reward):
        total = reward + gamma * later
        return total, total

    return jax.lax.scan(step, jnp.zeros_like(rewards[:, 0]), rewards.T, reverse=True)[1].T


def hash_tokens(tokens: jax.Array, counts: jax.Array) -> jax.Array:
    """64-bit hash u32[..., 2] of the tokens i32[..., O] for which `counts` bool[..., O] is true, in their order."""

    def step(code, now):
        token, is_one = now
        return jnp.where(is_one[..., None], _mixed(code, jnp.stack([token, token], axis=-1)), code), None

    start = jnp.full((*tokens.shape[:-1], 2), _SALT, jnp.uint32)
    inputs = (jnp.moveaxis(tokens.astype(jnp.uint32), -1, 0), jnp.moveaxis(counts, -1, 0))
    return jax.lax.scan(step, start, inputs)[0]


def with_history(state: jax.Array, steps: int) -> jax.Array:
    """64-bit hash u32[E, T, 2] of each turn's state and up to `steps` states before it.

    At the start of an episode there are fewer states before.

    Args:
        state: u32[E, T, 2]
        steps: static, at least 0; 0 returns `state` unchanged.
    """
    if steps == 0:
        return state
    code = jnp.full_like(state, _SALT)
    for back in range(steps, -1, -1):
        # Turns before the first get a distinct code, so that a short history equals only histories of its length.
        earlier = jnp.pad(state, ((0, 0), (back, 0), (0, 0)), constant_values=1)[:, : state.shape[1]]
        there = jnp.arange(state.shape[1])[:, None] >= back
        code = _mixed(_mixed(code, earlier), jnp.broadcast_to(there, state.shape).astype(jnp.uint32))
    return code


def same_state(state: jax.Array, group: jax.Array, counts: jax.Array) -> jax.Array:
    """Segment ids: two turns have the same id iff they belong to the same group, have the same state, and both count.

    Args:
        state: u32[E, T, 2]
        group: i32[E] group of each episode.
        counts: bool[E, T] turns that count; all others get the id E * T.

    Returns:
        i32[E, T] in [0, E * T].
    """
    turns = state.shape[1]
    of_turns = (~counts, jnp.repeat(group[:, None], turns, axis=1), state[..., 0], state[..., 1])
    columns = [column.reshape(-1) for column in of_turns]
    order = jnp.lexsort(columns[::-1])
    new = jnp.zeros(order.shape, bool)
    for column in columns:
        placed = column[order]
        new |= jnp.concatenate([jnp.zeros(1, bool), placed[1:] != placed[:-1]])
    number = jnp.zeros(order.shape, jnp.int32).at[order].set(jnp.cumsum(new, dtype=jnp.int32))
    return jnp.where(counts, number.reshape(counts.shape), counts.size)


def turn_advantages(
    returns: jax.Array,
    state: jax.Array,
    group: jax.Array,
    counts: jax.Array,
    *,
    history: int = 0,
    history_power: jax.Array | float = 1.0,
    normalize_std: bool,
) -> jax.Array:
    """Step-level advantages of GiGPO (Feng et al. 2025, arXiv 2505.10978), or of HGPO if `history` is above 0.

    A turn's return is compared with the returns of its group's turns in the same anchor state. HGPO (He et al. 2026,
    arXiv 2602.22817) does this for k = 0, ..., `history` earlier states that must agree too, and averages the results
    with weights proportional to (k + 1)^history_power. A turn that is alone in its state contributes 0.

    Args:
        returns: f32[E, T], from `returns_to_go`.
        state: u32[E, T, 2]
        group: i32[E]
        counts: bool[E, T] turns that were played, in episodes that count.
        history: largest number of earlier states that must agree, static.
        history_power: 0 weighs all levels equally; larger values favor longer histories.
        normalize_std: divide by the standard deviation of the turns in the state; otherwise only subtract the mean.

    Returns:
        f32[E, T], 0 where a turn does not count.
    """
    weights = (jnp.arange(history + 1) + 1.0) ** history_power
    total = jnp.zeros_like(returns)
    for steps, weight in enumerate(weights / jnp.sum(weights)):
        number = same_state(with_history(state, steps), group, counts).reshape(-1)
        compared = normalize(returns.reshape(-1), number, returns.size + 1, "mean_std" if normalize_std else "mean")
        total += weight * compared.reshape(returns.shape)
    return jnp.where(counts, total, 0.0)


def _mixed(code: jax.Array, value: jax.Array) -> jax.Array:
    """Mixes a 64-bit `value` into a 64-bit `code`, u32[..., 2] each (multiply-and-xorshift rounds as in murmur3)."""
    factors = jnp.array(_FACTORS, jnp.uint32)
    code = (code ^ value.astype(jnp.uint32) * factors[::-1]) * factors
    code ^= code >> 15
    # Each half is mixed with the other; otherwise this would be two independent 32-bit hashes.
    return (code + (code[..., ::-1] << 7)) * factors[::-1] ^ (code >> 13)
