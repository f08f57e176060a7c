"""Metrics of the episodes of an iteration, stored as sums and counts that can be added over rounds and devices.

Shapes: `E` episodes in `Gr` groups of `M` contiguous episodes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentrl_jax.algos import diagnostics
from agentrl_jax.algos import gigpo as gigpo
from agentrl_jax.algos.masked import Mean
from agentrl_jax.rollout.metrics import trajectory_means
from agentrl_jax.rollout.returns import Penalties
from agentrl_jax.rollout.trajectory import Trajectory


class Groups(NamedTuple):
    """Returns including penalties, f32[Gr, M], and bool[Gr, M], which episodes count."""

    scores: jax.Array
    valid: jax.Array


def groups_of(trajectory: Trajectory, returns: jax.Array, group_size: int) -> Groups:
    """The groups of E episodes.

    Args:
        trajectory: E episodes.
        returns: f32[E], penalties included.
        group_size: M.
    """
    valid = ~trajectory.failed.reshape(-1, group_size)
    # A single remaining episode of a larger group has nothing to be compared with.
    enough = jnp.sum(valid, axis=1, keepdims=True) >= min(group_size, 2)
    return Groups(returns.reshape(-1, group_size), valid & enough)


def measure(
    trajectory: Trajectory, groups: Groups, task_names: tuple[str, ...], penalties: Penalties
) -> dict[str, Mean]:
    """The metrics train/*, rollout/in_group_*, rollout/zero_std_share and rollout/repeated_share.

    Args:
        trajectory: E episodes.
        groups: groups of these episodes.
        task_names: name of each task.
        penalties: penalties that are included in the returns of `groups`.
    """
    found = trajectory_means(trajectory, task_names, groups.scores.shape[1], penalties)
    means = {f"train/{name}": x for name, x in found.items()}
    means |= {f"rollout/{name}": x for name, x in diagnostics.group_means(*groups).items()}
    said = gigpo.hash_tokens(*(x.reshape(len(x), -1) for x in (trajectory.response.tokens, trajectory.response_mask)))
    repeated = diagnostics.repeated(said.reshape(*groups.valid.shape, 2), groups.valid)
    return means | {"rollout/repeated_share": repeated}
