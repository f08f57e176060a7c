"""The levels of an evaluation: which ones, and what is known of them."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, Int8

from agentrl_jax.config import Config, PromptConfig
from agentrl_jax.config.tasks import NAMED_LEVELS, PANEL
from agentrl_jax.evaluate.baselines import level_baselines
from agentrl_jax.evaluate.command_baselines import command_baselines
from agentrl_jax.evaluate.draws import Draws
from agentrl_jax.rollout import rng
from agentrl_jax.rollout.envs.batched_env import Task
from agentrl_jax.rollout.envs.level_splits import TaskLevels, level_splits
from agentrl_jax.rollout.envs.mixed_env import TaskEnv
from agentrl_jax.rollout.trajectory import EpisodeIds
from agentrl_jax.setup import build_inputs, run_keys
from agentrl_jax.setup.service_tasks import Services
from envs_jax import registry
from envs_jax.budget import Baselines, Budget
from envs_jax.splits import Split


@dataclasses.dataclass(frozen=True, kw_only=True)
class LevelSet:
    """Levels of one task: rows of its level pack, or generated ones."""

    batched_env: TaskEnv
    """Environment with the task."""
    prompt: PromptConfig
    task: int
    """Index of the task."""
    levels: TaskLevels
    split: Split
    """The split whose levels are played."""
    seed: int
    """Seed of levels and sampling."""
    categories: Sequence[str] | None = None
    """Category of each of the task's levels, if there are several."""

    rotation: int = 0
    """Number of the task's rows that come last instead of first."""
    distinct: bool = True
    """Each content is played once. Otherwise levels are those that the environment draws, or all rows."""

    @property
    def key(self) -> jax.Array:
        """Key of levels and sampling, different for each split; seeds of host environments follow from it alone."""
        return run_keys.of_evaluation(self.seed, int(self.split))

    @property
    def rows(self) -> np.ndarray | None:
        """Rows of the task's level pack that are played; None if levels are generated."""
        rows = self.levels.rows(self.split)
        if rows is None:
            return None
        if self.distinct and self.levels.repeated_rows is not None:
            rows = rows[~self.levels.repeated_rows[rows]]
        return np.roll(rows, -self.rotation)

    def number(self, wanted: int) -> int:
        """Number of levels to play if `wanted` are requested: as many, if there are so many different ones."""
        if self.rows is not None:
            return min(wanted, len(self.rows))
        return len(self._different(wanted)[0]) if self.distinct else wanted

    def ids(self, first: int, count: int, number: int, *, sample: int = 0) -> EpisodeIds:
        """Ids of `count` episodes on the levels from `first` on, of a set of `number`; from its end on, any of them.

        Every `sample` is another episode on the same levels.
        """
        numbers = first + np.arange(count)
        if self.rows is not None:
            return build_inputs.evaluation_ids(numbers, self.task, self.rows[numbers % len(self.rows)], sample=sample)
        draws = self._different(number)[0] if self.distinct else np.arange(number)
        return build_inputs.evaluation_ids(draws[numbers % len(draws)], self.task, sample=sample)

    def _different(self, wanted: int) -> tuple[Int[np.ndarray, " n"], Int8[np.ndarray, "n H W"]]:
        """Numbers of the draws that give the first `wanted` different levels, and the levels."""
        task = self.batched_env.tasks[self.task]
        assert not task.has_items
        return _known_draws(task, self.task, self.seed, self.split, self.levels.split(self.split)).first(wanted)

    def baselines(self, episodes: int | Sequence[int]) -> Baselines | None:
        """Random, null and optimal play on the same levels within the agent's budget; None if unknown.

        `episodes` is the number of levels, or, of a compiled environment, the numbers of some.
        """
        task: Any = self.batched_env.tasks[self.task]
        if task.has_items:
            assert isinstance(episodes, int), "items are played in their order"
            return None if task.baselines is None else task.baselines(episodes)
        if task.arguments is not None:
            numbers = np.arange(episodes) if isinstance(episodes, int) else np.asarray(episodes)
            keys = rng.level_key(self.key, build_inputs.evaluation_ids(numbers, self.task))
            turns = min(self.prompt.max_actions, self.prompt.max_turns)
            return command_baselines(task, keys, self.levels.split(self.split), turns)
        levels = self.boards(episodes)
        budget = Budget(self.prompt.max_actions, self.prompt.max_turns, self.prompt.max_actions_per_turn)
        return level_baselines(task.name, task.env, task.env_params, levels, budget)

    def boards(self, episodes: int | Sequence[int]) -> Int8[np.ndarray, "n H W"]:
        """The first levels of a task, or some by their numbers; i8[n, 0, 0] if its levels are not boards."""
        task = self.batched_env.tasks[self.task]
        numbers = np.arange(episodes) if isinstance(episodes, int) else np.asarray(episodes)
        if task.has_items:
            return np.zeros((len(numbers), 0, 0), np.int8)
        if self.rows is not None:
            return np.asarray(task.env_params.levels)[self.rows[numbers]]
        if self.distinct:
            return self._different(int(numbers.max()) + 1)[1][numbers]
        keys = rng.level_key(self.key, build_inputs.evaluation_ids(numbers, self.task))
        return registry.sample_levels(task.env, task.env_params, keys, self.levels.split(self.split))


@functools.lru_cache(maxsize=16)
def _known_draws(task: Task, number: int, seed: int, split: Split, sampled_split: Split) -> Draws:
    """The draws of a task, which all sets of the same levels share: finding different ones takes seconds."""
    key = run_keys.of_evaluation(seed, int(split))

    def keys(numbers: np.ndarray) -> jax.Array:
        return rng.level_key(key, build_inputs.evaluation_ids(numbers, number))

    return Draws(task.env, task.env_params, keys, sampled_split)


def level_set(config: Config, batched_env: TaskEnv, named: str | None, services: Services | None = None) -> LevelSet:
    """The test levels of the first task of a configuration.

    `named` is the task's level file, or one of `NAMED_LEVELS`, if all of its levels are to be played; None to divide
    the task's levels as in training. `services` are those that the task is played on, if any.
    """
    task_levels = level_splits(batched_env).tasks[0]
    categories = None if services is None else services.categories([batched_env.levels(0)])
    if named in NAMED_LEVELS:
        from envs_jax import babyai

        items = babyai.items
        numbers = [items.number_of(item) for item in items.NAMED[named]()]
        categories = [items.family_of(n) if named == PANEL else f"{n:02} {babyai.NAMES[n]}" for n in numbers]
    if named == PANEL:
        # No run trains on them: they are test levels by content (`TextEnvironment.test_levels`).
        task_levels = TaskLevels(split_of_row=np.full(batched_env.levels(0), Split.TEST))
    elif named is not None:
        task_levels = TaskLevels("all levels of the file are played", np.zeros(batched_env.levels(0)))
    return LevelSet(
        batched_env=batched_env,
        prompt=config.prompt,
        task=0,
        levels=task_levels,
        split=Split.TEST,
        seed=config.evaluation.seed,
        categories=categories,
    )
