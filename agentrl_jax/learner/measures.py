"""Metrics of the episodes of an iteration, stored as sums and counts that can be added over rounds and devices.

Shapes: `E` episodes in `Gr` groups of `M` contiguous episodes.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from agentrl_jax.algos import diagnostics, gigpo
from agentrl_jax.algos.masked import Mean
from agentrl_jax.rollout.metrics import trajectory_means
from agentrl_jax.rollout.returns import Penalties
from agentrl_jax.rollout.trajectory import Trajectory


class Groups(NamedTuple):
    """Returns of the episodes of each group, penalties included, and which episodes count."""

    scores: Float[Array, "Gr M"]
    valid: Bool[Array, "Gr M"]


def groups_of(trajectory: Trajectory, returns: Float[Array, " E"], group_size: int) -> Groups:
    """The groups of E episodes with these returns (penalties included)."""
    valid = ~trajectory.failed.reshape(-1, group_size)
    # A single remaining episode of a larger group has nothing to be compared with.
    enough = jnp.sum(valid, axis=1, keepdims=True) >= min(group_size, 2)
    return Groups(returns.reshape(-1, group_size), valid & enough)


def measure(
    trajectory: Trajectory, groups: Groups, task_names: tuple[str, ...], penalties: Penalties
) -> dict[str, Mean]:
    """The metrics train/*, rollout/in_group_*, rollout/zero_std_share and rollout/repeated_share.

    `groups` are those of the trajectory, with `penalties` in their returns.
    """
    found = trajectory_means(trajectory, task_names, groups.scores.shape[1], penalties)
    means = {f"train/{name}": x for name, x in found.items()}
    means |= {f"rollout/{name}": x for name, x in diagnostics.group_means(*groups).items()}
    flat = (x.reshape(len(x), -1) for x in (trajectory.response.tokens, trajectory.response_mask))
    repeated = diagnostics.repeated(gigpo.hash_tokens(*flat).reshape(*groups.valid.shape, 2), groups.valid)
    return means | {"rollout/repeated_share": repeated}
