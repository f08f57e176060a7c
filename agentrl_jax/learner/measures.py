"""Metrics of the episodes of an iteration, stored as sums and counts that can be added over rounds and devices.

Shapes: `E` episodes in `Gr` groups of `M` contiguous episodes.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from agentrl_jax.algos import diagnostics, gigpo, masked
from agentrl_jax.algos.groups import center_and_std
from agentrl_jax.algos.masked import Mean
from agentrl_jax.rollout.metrics import trajectory_means
from agentrl_jax.rollout.returns import RewardRule, part_values
from agentrl_jax.rollout.trajectory import Trajectory


class Groups(NamedTuple):
    """Returns of the episodes of each group, penalties and parts included, and which episodes count."""

    scores: Float[Array, "Gr M"]
    valid: Bool[Array, "Gr M"]


def groups_of(trajectory: Trajectory, returns: Float[Array, " E"], group_size: int) -> Groups:
    """The groups of E episodes with these returns (penalties and parts included)."""
    valid = ~trajectory.failed.reshape(-1, group_size)
    # A single remaining episode of a larger group has nothing to be compared with.
    enough = jnp.sum(valid, axis=1, keepdims=True) >= min(group_size, 2)
    return Groups(returns.reshape(-1, group_size), valid & enough)


def measure(trajectory: Trajectory, groups: Groups, task_names: tuple[str, ...], rule: RewardRule) -> dict[str, Mean]:
    """The metrics train/*, rollout/in_group_*, rollout/zero_std_share, rollout/repeated_share, and those of the parts.

    Of each part of the reward, over the episodes to which it applies: reward/NAME_mean, the mean of its sum over an
    episode; NAME_std, the mean of its standard deviation inside groups; NAME_share, the share of its weighted size in
    that of all parts of a group; NAME_success, the rank correlation with success inside groups (of pairs of members of
    which one solves the task, the share in which it has more of the part, minus the share in which it has less).

    `groups` are those of the trajectory, with returns by `rule`.
    """
    found = trajectory_means(trajectory, task_names, groups.scores.shape[1], rule)
    means = {f"train/{name}": x for name, x in found.items()}
    means |= {f"rollout/{name}": x for name, x in diagnostics.group_means(*groups).items()}
    means |= _of_parts(trajectory, groups, rule)
    flat = (x.reshape(len(x), -1) for x in (trajectory.response.tokens, trajectory.response_mask))
    repeated = diagnostics.repeated(gigpo.hash_tokens(*flat).reshape(*groups.valid.shape, 2), groups.valid)
    return means | {"rollout/repeated_share": repeated}


def _of_parts(trajectory: Trajectory, groups: Groups, rule: RewardRule) -> dict[str, Mean]:
    if not rule.parts:
        return {}
    shape, found, parts = groups.valid.shape, {}, part_values(trajectory, rule)
    sums = {name: jnp.sum(part.value, axis=1).reshape(shape) for name, part in parts.items()}
    sizes = {name: jnp.abs(part.weight * sums[name]) for name, part in parts.items()}
    size = jnp.sum(jnp.where(groups.valid, sum(sizes.values()), 0.0), axis=1)
    solved = trajectory.success.reshape(shape)
    differ = (solved[:, :, None] & ~solved[:, None]) & groups.valid[:, :, None] & groups.valid[:, None]
    for name, part in parts.items():
        valid = groups.valid & part.applies.reshape(shape)
        found[f"{name}_mean"] = masked.mean(sums[name], valid)
        found[f"{name}_std"] = masked.mean(center_and_std(sums[name], valid)[1], jnp.any(valid, axis=1))
        share = jnp.sum(jnp.where(valid, sizes[name], 0.0), axis=1) / jnp.where(size > 0, size, 1.0)
        found[f"{name}_share"] = masked.mean(share, size > 0)
        ahead = jnp.sign(sums[name][:, :, None] - sums[name][:, None])
        found[f"{name}_success"] = masked.mean(ahead, differ & part.applies.reshape(shape)[:, :1, None])
    return {f"reward/{name}": x for name, x in found.items()}
