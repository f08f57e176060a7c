"""How many levels of an evaluation a run has learned from, counted by their content.

A run writes the levels of every batch to levels.jsonl: `step`, `stage` (imitation, rl or test) and `levels`, the ids
of the different levels. So the count does not rest on the rule that keeps splits apart, but tests it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.rollout.envs.batched_env import Task
from agentrl_jax.rollout.envs.level_splits import TaskLevels
from agentrl_jax.rollout.trajectory import hexadecimal
from envs_jax import registry
from envs_jax.splits import grid_images

LEARNED = ("imitation", "rl")
"""Stages whose levels change parameters."""


def learned_levels(
    rows: Iterable[Mapping[str, Any]], metrics: Iterable[Mapping[str, Any]], last: int
) -> set[str] | None:
    """The levels that a run has learned from, of all its tasks.

    Args:
        rows: those of levels.jsonl.
        metrics: those of metrics.jsonl.
        last: step up to which the run counts, as that of its checkpoint.

    Returns:
        Their ids; None where a step has no row in metrics.jsonl, or its batch none in levels.jsonl: a count of what is
        left would be too small.
    """
    learned = [row for row in rows if row["stage"] in LEARNED and row["step"] <= last]
    done = [row for row in metrics if row["step"] <= last]
    known = {row["step"] if row["stage"] == "rl" else row["stage"] for row in learned}
    needed = {row["step"] if row["stage"] == "rl" else row["stage"] for row in done}
    if not needed <= known or not set(range(1, last + 1)) <= {row["step"] for row in done}:
        return None
    return {level for row in learned for level in row["levels"]}


def seen_levels(
    learned: set[str] | None, levels: Sequence[str], divided: TaskLevels, task: Any, boards: np.ndarray
) -> dict[str, Any]:
    """What is known of the levels of one task's evaluation.

    Args:
        learned: ids of the levels that were learned from; None where they are not known.
        levels: ids of those that were played.
        divided: how the task's levels are divided.
        task: the task.
        boards: the levels that were played, i8[n, H, W]; i8[n, 0, 0] where they are no boards.

    Returns:
        `held_out`: true, or why levels are not held out; `levels` played; `distinct_levels` among them; `seen_levels`,
        how many of those played were learned from, None where that is not known; of boards `seen_images`, how many
        were, rotated or mirrored.
    """
    found = {
        "held_out": divided.too_small or True,
        "levels": len(levels),
        "distinct_levels": len(set(levels)),
        "seen_levels": None if learned is None else sum(level in learned for level in levels),
    }
    if learned is None or not isinstance(task, Task) or not registry.has_levels(task.env):
        return found
    return found | {"seen_images": _seen_images(learned, task, boards)}


def _seen_images(learned: set[str], task: Task, boards: np.ndarray) -> int:
    """How many boards i8[n, H, W] of a task were learned from, rotated or mirrored."""
    images = np.stack([grid_images(board) for board in boards])

    def state_hash(board: jax.Array) -> jax.Array:
        return task.env.state_hash(task.env.reset_to_level(board, task.env_params)[1], task.env_params)

    hashes = np.asarray(jax.jit(jax.vmap(state_hash))(jnp.asarray(images.reshape(-1, *images.shape[2:]))))
    ids = np.array(hexadecimal(hashes)).reshape(images.shape[:2])
    return int(np.isin(ids, list(learned)).any(axis=1).sum())
