"""Metrics of a batch of trajectories of `E` episodes, over all episodes and per task."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from agentrl_jax.algos import masked
from agentrl_jax.algos.masked import Mean
from agentrl_jax.rollout.returns import RewardRule, total_returns
from agentrl_jax.rollout.trajectory import TRUNCATIONS, Trajectory


def trajectory_metrics(
    trajectory: Trajectory, task_names: tuple[str, ...], group_size: int, rule: RewardRule
) -> dict[str, Float[Array, ""]]:
    """The means of `trajectory_means` as values."""
    return {name: x.value for name, x in trajectory_means(trajectory, task_names, group_size, rule).items()}


def trajectory_means(
    trajectory: Trajectory, task_names: tuple[str, ...], group_size: int, rule: RewardRule
) -> dict[str, Mean]:
    """Means over the episodes of a batch (RAGEN's `train/*`, reference section 3.2).

    Episodes whose environment failed count in "failed" and in nothing else. The rows of a group are contiguous; M is
    `group_size`. First over all episodes; with several tasks also under each task's name, with "episodes":

    success, return (with penalties and parts), raw_return, turns, actions, response_tokens (per turn), valid_format
    (share of turns), valid_turn, ended (share of turns that the policy ended itself), failed, overflow, truncated
    and by cause truncated_turns, truncated_actions and truncated_context, pass@M; numeric environment information
    as a mean per turn, and non-zero/... as the mean over the episodes where it is not 0.
    """
    metrics = _means(trajectory, jnp.ones(trajectory.num_turns.shape, bool), group_size, rule)
    if len(task_names) > 1:
        for index, name in enumerate(task_names):
            chosen = trajectory.ids.task == index
            part = _means(trajectory, chosen, group_size, rule)
            # A sum, so the weight is 0.
            part["episodes"] = Mean(masked.count(chosen), jnp.float32(0))
            metrics |= {f"{name}/{key}": value for key, value in part.items()}
    return metrics


def _means(trajectory: Trajectory, chosen: Bool[Array, " E"], group_size: int, rule: RewardRule) -> dict[str, Mean]:
    valid = chosen & ~trajectory.failed
    played = trajectory.turn_mask & valid[:, None]

    def mean(x, where=valid):
        return masked.mean(x.astype(jnp.float32), where)

    solved = (trajectory.success & valid).reshape(-1, group_size)
    turn = trajectory.turn
    metrics = {
        "success": mean(trajectory.success),
        f"pass@{group_size}": mean(jnp.repeat(jnp.any(solved, axis=1), group_size)),
        "return": mean(total_returns(trajectory, rule)),
        "raw_return": mean(trajectory.returns),
        "turns": mean(trajectory.num_turns),
        "actions": mean(jnp.sum(turn.actions >= 0, axis=(1, 2))),
        "response_tokens": mean(trajectory.response.length, played),
        "valid_format": mean(1 - turn.format_error, played),
        "valid_turn": mean(turn.valid, played),
        "ended": mean(trajectory.response.ended, played),
        "failed": mean(trajectory.failed, chosen),
        "overflow": mean(trajectory.overflow),
        "truncated": mean(trajectory.truncation > 0),
    }
    for index, cause in enumerate(TRUNCATIONS):
        metrics[f"truncated_{cause}"] = mean(trajectory.truncation == 1 + index)
    for name, values in turn.info.items():
        per_episode = jnp.sum(jnp.where(played, values, 0.0), axis=1) / jnp.maximum(trajectory.num_turns, 1)
        metrics[name] = mean(per_episode)
        metrics[f"non-zero/{name}"] = mean(per_episode, valid & (per_episode != 0))
    return metrics
