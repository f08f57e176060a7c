"""Assigns the levels of each task to training, validation and test.

A task with too few different levels is not divided: every split uses all of its levels, and the run reports it. But no
training uses those that are test levels in any case (`TextEnvironment.test_levels`).
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from agentrl_jax.rollout.envs.mixed_env import TaskEnv
from envs_jax.environment import TextEnvironment
from envs_jax.splits import SHARES, Split, distinct_levels, fixed_levels, level_hashes, splits_of_levels

SAMPLED_LEVELS = 1024
"""Levels that are sampled to see whether a task has enough different ones."""

MIN_LEVELS = 8
"""Different levels that each split needs, among the sampled or in a level pack. With fewer, no level is held out."""


@dataclasses.dataclass(frozen=True, eq=False)
class TaskLevels:
    """The levels of one task."""

    undivided_reason: str = ""
    """Why the levels are not divided; empty if they are."""
    split_of_row: np.ndarray | None = None
    """i32[N] split of every row of the task's level pack; None if levels are generated."""
    fixed_rows: np.ndarray | None = None
    """bool[N] which rows of an undivided pack are test levels in any case; None if levels are generated."""
    repeated_rows: np.ndarray | None = None
    """bool[N] which rows have the content of a row before them; None if that is not known, or levels are generated."""
    some_fixed: bool = False
    """Whether some of the undivided levels are test levels in any case."""

    def split(self, wanted: Split) -> Split:
        """The split to sample from when levels of `wanted` are needed."""
        if not self.undivided_reason:
            return wanted
        return Split.NOT_FIXED if wanted == Split.TRAIN and self.some_fixed else Split.ANY

    def rows(self, wanted: Split) -> np.ndarray | None:
        """Rows i64[.] of the pack that belong to a split; None if levels are generated."""
        if self.split_of_row is None:
            return None
        if not self.undivided_reason:
            return np.flatnonzero(self.split_of_row == wanted)
        if self.fixed_rows is not None and wanted == Split.TRAIN:
            return np.flatnonzero(~self.fixed_rows)
        return np.arange(len(self.split_of_row))


@dataclasses.dataclass(frozen=True, eq=False)
class LevelSplits:
    """The levels of K tasks."""

    tasks: tuple[TaskLevels, ...]

    def of(self, wanted: Split) -> Int[Array, " K"]:
        """The split of each task, for `RolloutSettings.split`."""
        return jnp.array([task.split(wanted) for task in self.tasks], jnp.int32)


def level_splits(batched_env: TaskEnv) -> LevelSplits:
    """Divides the levels of the tasks of a batched environment; host tasks define their own splits."""
    tasks: tuple[Any, ...] = batched_env.tasks
    return LevelSplits(
        tuple(
            TaskLevels(x.undivided, split_of_row=x.splits) if x.has_items else task_levels(x.env, x.env_params)
            for x in tasks
        )
    )


def task_levels(env: TextEnvironment, params: Any) -> TaskLevels:
    """Divides the levels of one compiled environment. Runs on the host; the result is deterministic."""
    levels = getattr(params, "levels", None)
    if levels is not None and levels.shape[0] > 0:
        split_of_row = splits_of_levels(env, params, np.asarray(levels))
        fixed_rows = fixed_levels(env, params, np.asarray(levels))
        first_rows = np.unique(level_hashes(env, params, np.asarray(levels)), axis=0, return_index=True)[1]
        repeated = ~np.isin(np.arange(len(split_of_row)), first_rows)
        counts = {split: int(np.sum((split_of_row == split) & ~repeated)) for split in SHARES}
        where, some_fixed = f"{len(split_of_row)} levels of its file", bool(np.any(fixed_rows))
    else:
        split_of_row, fixed_rows, repeated = None, None, None
        counts = distinct_levels(env, params, SAMPLED_LEVELS)
        where, some_fixed = f"{SAMPLED_LEVELS} draws", len(env.test_levels) > 0
    if min(counts.values()) >= MIN_LEVELS:
        return TaskLevels(split_of_row=split_of_row, repeated_rows=repeated)
    found = ", ".join(f"{counts[split]} for {split.name.lower()}" for split in SHARES)
    reason = f"{where} hold {found}; at least {MIN_LEVELS} of each are needed"
    return TaskLevels(reason, split_of_row, fixed_rows, repeated, some_fixed)
