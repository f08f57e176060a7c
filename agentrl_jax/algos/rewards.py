"""Returns of episodes: normalization inside groups, and placement on the tokens of a row.

Shapes: `E` episodes, `N` rows of `S` positions, `T` turns.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from agentrl_jax.algos.groups import STD_FLOOR
from agentrl_jax.config.advantages import Normalization, Placement

_ASYMMETRIC_RANGE = (-1.0, 3.0)


def normalize(
    scores: Float[Array, " E"], group: Int[Array, " E"], num_segments: int, method: Normalization
) -> Float[Array, " E"]:
    """Normalizes returns inside groups of any size (RAGEN's `reward_normalization`).

    identity: unchanged. mean: minus the group's mean. mean_std: also divided by (unbiased std + 1e-6), exactly 0 where
    the std is at most 1e-6. asym_clip: mean_std, clamped to [-1, 3]. An episode alone in its group gets 0, except with
    identity (RAGEN leaves scores unchanged when *every* group has one episode; choose identity for that).

    `group` are ids in [0, num_segments) that decide which episodes are compared (those of a level, of a task, or all).
    """
    if method == "identity":
        return scores

    def per_group(x: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(x, group, num_segments)

    number = per_group(jnp.ones_like(scores))
    # Subtracting the group's minimum first makes equal scores exactly 0 before anything is rounded.
    shifted = scores - jax.ops.segment_min(scores, group, num_segments)[group]
    centered = shifted - (per_group(shifted) / jnp.maximum(number, 1.0))[group]
    if method == "mean":
        return centered
    std = jnp.sqrt(per_group(jnp.square(centered)) / jnp.maximum(number - 1.0, 1.0))[group]
    scaled = jnp.where(std <= STD_FLOOR, 0.0, centered / (std + STD_FLOOR))
    return scaled if method == "mean_std" else jnp.clip(scaled, *_ASYMMETRIC_RANGE)


def place_rewards(
    turn_rewards: Float[Array, "N T"], turn_last: Int[Array, "N T"], length: int, placement: Placement
) -> Float[Array, "N S"]:
    """Puts the rewards of a row's turns on sampled tokens (RAGEN's `use_turn_scores`); `length` is S.

    `turn_last` is the position of each turn's last sampled token, -1 for a turn without one; it grows with the turn.

    episode: the sum of *all* T rewards at the row's last sampled token, even if some of the turns are not in the row;
    a row without sampled tokens gets 0. turn: each reward at the last sampled token of its turn; the reward of a turn
    without one is dropped.
    """
    if placement == "episode":
        turn_rewards = jnp.sum(turn_rewards, axis=1, keepdims=True)
        turn_last = jnp.max(turn_last, axis=1, keepdims=True)
    row = jnp.arange(turn_rewards.shape[0])[:, None]
    # A negative index would count from the end, so use one past the end, which is dropped.
    column = jnp.where(turn_last < 0, length, turn_last)
    return jnp.zeros((turn_rewards.shape[0], length), turn_rewards.dtype).at[row, column].add(turn_rewards, mode="drop")


def overlong_share(length: Int[Array, "*shape"], limit: int, buffer: jax.Array | float) -> Float[Array, "*shape"]:
    """Share of the overlong penalty for each response (Yu et al. 2025, DAPO, section 3.4, eq. 13), from 0 to 1.

    0 up to (1 - buffer) * limit tokens, 1 at the limit, linear between; with `buffer` 0 there is no penalty. A response
    that was cut off at the limit gets the full penalty. The paper has single responses; here the penalty applies to the
    response of every turn.
    """
    buffered = jnp.maximum(jnp.float32(limit) * buffer, 1e-6)
    into = (length - limit + buffered) / buffered
    return jnp.where(jnp.asarray(buffer) > 0, jnp.clip(into, 0.0, 1.0), 0.0)
