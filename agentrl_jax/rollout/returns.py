"""Turn rewards and returns with penalties: one definition for learner, dynamic sampling and metrics.

Shapes: `E` episodes, `T` turns.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentrl_jax.algos.rewards import overlong_share
from agentrl_jax.rollout.trajectory import Trajectory


class Penalties(NamedTuple):
    """Penalties that are added to the environment's rewards, f32[] each.

    Attributes:
        format_penalty: added for every turn with a format error, at most 0.
        overlong_buffer: share of the maximum response length over which the overlong penalty grows; 0: no penalty.
        overlong_penalty: subtracted from a turn whose response has the maximum length, at least 0.
    """

    format_penalty: jax.Array | float
    overlong_buffer: jax.Array | float = 0.0
    overlong_penalty: jax.Array | float = 0.0


def turn_rewards(trajectory: Trajectory, penalties: Penalties) -> jax.Array:
    """Reward of each turn with penalties, f32[E, T]; 0 for turns that were not played."""
    paid = penalties.format_penalty * trajectory.turn.format_error
    paid -= penalties.overlong_penalty * overlong(trajectory, penalties)
    return jnp.where(trajectory.turn_mask, trajectory.turn.reward + paid, 0.0)


def penalized_returns(trajectory: Trajectory, penalties: Penalties) -> jax.Array:
    """Return of each episode with penalties, f32[E]."""
    return jnp.sum(turn_rewards(trajectory, penalties), axis=1)


def overlong(trajectory: Trajectory, penalties: Penalties) -> jax.Array:
    """How far each response reaches into the overlong buffer, f32[E, T] from 0 to 1 (`overlong_share`)."""
    return overlong_share(trajectory.response.length, trajectory.response.tokens.shape[-1], penalties.overlong_buffer)
