"""Turn rewards and returns with penalties: one definition for learner, dynamic sampling and metrics.

Shapes: `E` episodes, `T` turns.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from agentrl_jax.algos.rewards import overlong_share
from agentrl_jax.rollout.trajectory import Trajectory


class Penalties(NamedTuple):
    """Penalties that are added to the environment's rewards."""

    format_penalty: Float[Array, ""] | float
    """Added for every turn with a format error, at most 0."""
    overlong_buffer: Float[Array, ""] | float = 0.0
    """Share of the maximum response length over which the overlong penalty grows; 0: no penalty."""
    overlong_penalty: Float[Array, ""] | float = 0.0
    """Subtracted from a turn whose response has the maximum length, at least 0."""


def turn_rewards(trajectory: Trajectory, penalties: Penalties) -> Float[Array, "E T"]:
    """Reward of each turn with penalties; 0 for turns that were not played."""
    added = penalties.format_penalty * trajectory.turn.format_error
    added -= penalties.overlong_penalty * overlong(trajectory, penalties)
    return jnp.where(trajectory.turn_mask, trajectory.turn.reward + added, 0.0)


def penalized_returns(trajectory: Trajectory, penalties: Penalties) -> Float[Array, " E"]:
    """Return of each episode with penalties."""
    return jnp.sum(turn_rewards(trajectory, penalties), axis=1)


def overlong(trajectory: Trajectory, penalties: Penalties) -> Float[Array, "E T"]:
    """How far each response reaches into the overlong buffer, from 0 to 1 (`overlong_share`)."""
    return overlong_share(trajectory.response.length, trajectory.response.tokens.shape[-1], penalties.overlong_buffer)
