"""Advantages of turns relative to other turns of the group that were taken in the same state (GiGPO, HGPO).

Shapes: `E` episodes, `T` turns. A state is identified by a 64-bit hash of two words: the environment's hash, or that of
the tokens that the model read (`hash_tokens`). Two states with equal hashes are treated as one.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from agentrl_jax.algos.rewards import normalize

_FACTORS = (0x01000193, 0x85EBCA6B)
_SALT = 0x9E3779B9


def returns_to_go(rewards: Float[Array, "E T"], gamma: jax.Array | float) -> Float[Array, "E T"]:
    """Discounted return from each turn on; `gamma` is the discount per turn."""

    def step(later, reward):
        total = reward + gamma * later
        return total, total

    return jax.lax.scan(step, jnp.zeros_like(rewards[:, 0]), rewards.T, reverse=True)[1].T


def hash_tokens(tokens: Int[Array, "*rows O"], mask: Bool[Array, "*rows O"]) -> UInt[Array, "*rows 2"]:
    """64-bit hash of the tokens for which `mask` is true, in their order."""

    def step(code, now):
        token, counts = now
        return jnp.where(counts[..., None], _mix(code, jnp.stack([token, token], axis=-1)), code), None

    start = jnp.full_like(tokens, _SALT, jnp.uint32, (*tokens.shape[:-1], 2))
    inputs = (jnp.moveaxis(tokens.astype(jnp.uint32), -1, 0), jnp.moveaxis(mask, -1, 0))
    return jax.lax.scan(step, start, inputs)[0]


def with_history(state: UInt[Array, "E T 2"], steps: int) -> UInt[Array, "E T 2"]:
    """64-bit hash of each turn's state and up to `steps` states before it, fewer at the start of an episode."""
    if steps == 0:
        return state
    code = jnp.full_like(state, _SALT)
    for back in range(steps, -1, -1):
        # Turns before the first get a distinct code, so that a short history equals only histories of its length.
        earlier = jnp.pad(state, ((0, 0), (back, 0), (0, 0)), constant_values=1)[:, : state.shape[1]]
        exists = jnp.arange(state.shape[1])[:, None] >= back
        code = _mix(_mix(code, earlier), jnp.broadcast_to(exists, state.shape).astype(jnp.uint32))
    return code


def same_state(state: UInt[Array, "E T 2"], group: Int[Array, " E"], counts: Bool[Array, "E T"]) -> Int[Array, "E T"]:
    """Segment ids: two turns have the same id iff they belong to the same group, have the same state, and both count.

    Ids are below E * T; turns that do not count get E * T.
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
    returns: Float[Array, "E T"],
    state: UInt[Array, "E T 2"],
    group: Int[Array, " E"],
    counts: Bool[Array, "E T"],
    *,
    history: int = 0,
    history_power: jax.Array | float = 1.0,
    normalize_std: bool,
) -> Float[Array, "E T"]:
    """Step-level advantages of GiGPO (Feng et al. 2025, arXiv 2505.10978), or of HGPO if `history` is above 0.

    A turn's return (`returns_to_go`) is compared with the returns of its group's turns in the same anchor state. HGPO
    (He et al. 2026, arXiv 2602.22817) does this for k = 0, ..., `history` earlier states that must agree too, and
    averages the results with weights proportional to (k + 1)^history_power. A turn that is alone in its state
    contributes 0.

    `counts` marks turns that were played, in valid episodes; all others get 0. With `normalize_std` the returns are
    divided by the standard deviation in the state, otherwise the mean is subtracted only.
    """
    weights = (jnp.arange(history + 1) + 1.0) ** history_power
    total = jnp.zeros_like(returns)
    for steps, weight in enumerate(weights / jnp.sum(weights)):
        number = same_state(with_history(state, steps), group, counts).reshape(-1)
        compared = normalize(returns.reshape(-1), number, returns.size + 1, "mean_std" if normalize_std else "mean")
        total += weight * compared.reshape(returns.shape)
    return jnp.where(counts, total, 0.0)


def _mix(code: jax.Array, value: jax.Array) -> jax.Array:
    """Mixes a 64-bit `value` into a 64-bit `code`, u32[..., 2] each (multiply-and-xorshift rounds as in murmur3)."""
    factors = jnp.array(_FACTORS, jnp.uint32)
    code = (code ^ value.astype(jnp.uint32) * factors[::-1]) * factors
    code ^= code >> 15
    # Each half is mixed with the other; otherwise this would be two independent 32-bit hashes.
    return (code + (code[..., ::-1] << 7)) * factors[::-1] ^ (code >> 13)
