"""What turns and episodes have earned, penalties included: one definition for learner, dynamic sampling and metrics.

Shapes: `E` episodes, `T` turns.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentrl_jax.algos.rewards import overlong_share
from agentrl_jax.rollout.trajectory import Trajectory


class Penalties(NamedTuple):
    """What turns pay besides the rewards of their environment, f32[] each.

    Attributes:
        format_penalty: added for every turn with a format error, at most 0.
        overlong_buffer: share of the longest response over which the overlong penalty grows; 0: none is paid.
        overlong_penalty: what a response of the greatest length costs its turn, at least 0.
    """

    format_penalty: jax.Array | float
    overlong_buffer: jax.Array | float = 0.0
    overlong_penalty: jax.Array | float = 0.0


def turn_rewards(trajectory: Trajectory, penalties: Penalties) -> jax.Array:
    """What each turn has earned, f32[E, T]; 0 for turns that were not played."""
    paid = penalties.format_penalty * trajectory.turn.format_error
    paid -= penalties.overlong_penalty * overlong(trajectory, penalties)
    return jnp.where(trajectory.turn_mask, trajectory.turn.reward + paid, 0.0)


def penalized_returns(trajectory: Trajectory, penalties: Penalties) -> jax.Array:
    """Return of each episode, f32[E]."""
    return jnp.sum(turn_rewards(trajectory, penalties), axis=1)


def overlong(trajectory: Trajectory, penalties: Penalties) -> jax.Array:
    """How far each response is into the buffer before the longest one, f32[E, T] from 0 to 1 (`overlong_share`)."""
    return overlong_share(trajectory.response.length, trajectory.response.tokens.shape[-1], penalties.overlong_buffer)
