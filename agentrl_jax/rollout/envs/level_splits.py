"""Which levels of each task are for training, validation and test.

A task whose space of levels is too small to be divided plays any level everywhere, and its run says so.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.rollout.envs.batched_env import CompiledEnv, Task
from agentrl_jax.rollout.envs.host import HostEnv
from envs_jax.splits import SHARES, Split, distinct_levels, splits_of_levels

DRAWS = 1024
"""Levels that are drawn to see whether a task has enough of them."""

LEAST = 8
"""Different levels that each split needs among these draws, or in a pack; with fewer nothing is held out."""


@dataclasses.dataclass(frozen=True, eq=False)
class TaskLevels:
    """The levels of one task.

    Attributes:
        too_small: why its levels are not divided; empty where they are.
        pack: i32[N] split of every level of the task's pack; None where levels are drawn.
    """

    too_small: str = ""
    pack: np.ndarray | None = None

    @property
    def held_out(self) -> bool:
        """Whether no level is in two splits."""
        return not self.too_small

    def split(self, wanted: Split) -> Split:
        """What levels are drawn from where those of a split are wanted."""
        return wanted if self.held_out else Split.ANY

    def rows(self, wanted: Split) -> np.ndarray | None:
        """Rows i64[.] of the pack that belong to a split; None where levels are drawn."""
        if self.pack is None:
            return None
        return np.flatnonzero(self.pack == wanted) if self.held_out else np.arange(len(self.pack))


@dataclasses.dataclass(frozen=True, eq=False)
class LevelSplits:
    """The levels of K tasks."""

    tasks: tuple[TaskLevels, ...]

    def of(self, wanted: Split) -> jax.Array:
        """i32[K] for `RolloutSettings.split`."""
        return jnp.array([task.split(wanted) for task in self.tasks], jnp.int32)


def level_splits(batched_env: CompiledEnv | HostEnv) -> LevelSplits:
    """Looks at the levels of a world's tasks; host environments say themselves which of theirs are for what."""
    if isinstance(batched_env, CompiledEnv):
        return LevelSplits(tuple(task_levels(task) for task in batched_env.tasks))
    return LevelSplits(tuple(TaskLevels(pack=task.splits) for task in batched_env.tasks))


def task_levels(task: Task) -> TaskLevels:
    """Looks at the levels of one compiled task. Host work, the same every time."""
    levels = getattr(task.env_params, "levels", None)
    if levels is not None and levels.shape[0] > 0:
        pack = splits_of_levels(task.env, task.env_params, np.asarray(levels))
        counts = {split: int(np.sum(pack == split)) for split in SHARES}
        where = f"{len(pack)} levels of its file"
    else:
        pack, where = None, f"{DRAWS} draws"
        counts = distinct_levels(task.env, task.env_params, DRAWS)
    few = [split for split, count in counts.items() if count < LEAST]
    if not few:
        return TaskLevels(pack=pack)
    found = ", ".join(f"{counts[split]} for {split.name.lower()}" for split in SHARES)
    return TaskLevels(f"{where} hold {found}; at least {LEAST} of each are needed", pack)
