"""The levels that a run trains on, where its tasks choose from a fixed set (`tasks.N.sampling`)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, UInt32

from agentrl_jax.algos.groups import STD_FLOOR, center_and_std
from agentrl_jax.algos.level_sampling import (
    Kind,
    LevelPool,
    Priority,
    choose_by_priority,
    choose_evenly,
    new_pool,
    observe,
    summary,
)
from agentrl_jax.config import Config
from agentrl_jax.config.sampling import Draws, Prioritized
from agentrl_jax.errors import BadValue
from agentrl_jax.learner.measures import groups_of
from agentrl_jax.rollout import rng
from agentrl_jax.rollout.envs.level_splits import LevelSplits, TaskLevels
from agentrl_jax.rollout.envs.mixed_env import TaskEnv
from agentrl_jax.rollout.returns import RewardRule, reward_rule, total_returns
from agentrl_jax.rollout.trajectory import EpisodeIds, RolloutSettings, Trajectory
from agentrl_jax.setup import build_inputs
from envs_jax.environment import TextEnvironment
from envs_jax.splits import Split, first_try

DRAWN_AT_ONCE = 4096
PATIENCE = 16
"""Batches of draws in a row with no new level, after which there are no more."""
_APART, _SEEDS = 2**20, 2**10
"""The numbered levels of two seeds are so far apart; so many seeds have levels of their own."""

Pools = tuple[LevelPool | None, ...]
"""The pool of each task; None where levels are drawn."""


def new_pools(config: Config, batched_env: TaskEnv, splits: LevelSplits) -> Pools | None:
    """The pools of a run before its first iteration, in NumPy; None if all tasks draw their levels.

    Raises:
        ValueError: a task has fewer different training levels than `levels`, or than groups.
    """
    pools: list[LevelPool | None] = []
    for index, task in enumerate(config.tasks):
        pools.append(None)
        if isinstance(task.sampling, Draws):
            continue
        wanted, key = task.sampling.levels, f"tasks.{index}.sampling.levels"
        known = _training_levels(batched_env.tasks[index], splits.tasks[index], wanted, config.seed)
        if known is None:
            raise BadValue.of(key, wanted, f"but {task.label} generates its levels; give a number, e.g. 4096")
        if not len(known):
            raise BadValue.of(
                key, wanted, f"but the seeds of {task.label} are no numbered levels; use draws, or name items"
            )
        if len(known) < max(wanted, task.groups):
            why = f"but {task.label} has {len(known)} different training levels; use at most so many, and as few groups"
            raise BadValue.of(key, wanted, why)
        shuffled = np.random.default_rng(config.seed).permutation(known)
        pools[-1] = jax.device_get(new_pool(jnp.asarray(np.sort(shuffled[: wanted or None]), jnp.int32)))
    return tuple(pools) if any(pools) else None


def _training_levels(task: Any, levels: TaskLevels, wanted: int, seed: int) -> Int[np.ndarray, " n"] | None:
    """Different training levels of a task, as `EpisodeIds.level`: all, or of a generator the first `wanted` ones.

    None where these are 0.
    """
    if task.has_items:
        return np.arange(task.levels)
    rows = levels.rows(Split.TRAIN)
    if rows is not None:
        return rows if levels.repeated_rows is None else rows[~levels.repeated_rows[rows]]
    if not wanted:
        return None
    split, first = jnp.int32(levels.split(Split.TRAIN)), seed % _SEEDS * _APART
    found: dict[bytes, int] = {}
    newest = 0
    for batch in range(_APART // DRAWN_AT_ONCE):
        numbers = first + batch * DRAWN_AT_ONCE + np.arange(DRAWN_AT_ONCE)
        contents, usable = map(np.asarray, _contents(task.env, jnp.asarray(numbers), task.env_params, split))
        before = len(found)
        for number, content in zip(numbers[usable].tolist(), contents[usable]):
            found.setdefault(content.tobytes(), number)
        newest = batch if len(found) > before else newest
        if len(found) >= wanted or batch - newest == PATIENCE:
            break
    return rng.FIRST_NUMBERED - np.array(list(found.values())[:wanted], np.int64)


# Programs are kept by environment; equal environments share one.
@functools.partial(jax.jit, static_argnums=0)
def _contents(
    env: TextEnvironment, numbers: Int[Array, " n"], params: Any, split: Int[Array, ""]
) -> tuple[UInt32[Array, "n 2"], Bool[Array, " n"]]:
    """The hashes of the contents of numbered levels, and whether each is of the split at the first try.

    The levels of an environment without boards are all different.
    """

    def one(key: Key[Array, ""], number: Int[Array, ""]) -> tuple[jax.Array, jax.Array]:
        content, usable = first_try(env, key, params, split)
        own = jnp.stack([number, jnp.int32(0)]).astype(jnp.uint32)
        return content if env.has_levels else own, usable

    return jax.vmap(one)(rng.numbered_level_key(numbers), numbers)


def choose(pools: Pools | None, ids: EpisodeIds, config: Config, key: jax.Array, iteration: int) -> EpisodeIds:
    """The ids of an iteration's episodes, on the levels that are chosen for them; `key` is that of the iteration."""
    if pools is None:
        return ids
    groups, rules, numbers = [], [], []
    for task in config.tasks:
        rule = task.sampling
        groups.append(task.groups)
        rules.append(rule.priority if isinstance(rule, Prioritized) else None)
        numbers.append(Priority(**rule.traced()) if isinstance(rule, Prioritized) else None)
    chosen = _choose(pools, key, jnp.int32(iteration), tuple(numbers), groups=tuple(groups), rules=tuple(rules))
    return ids.replace(level=jnp.repeat(chosen, config.rollout.group_size))


@functools.partial(jax.jit, static_argnames=("groups", "rules"))
def _choose(
    pools: Pools,
    key: Key[Array, ""],
    iteration: Int[Array, ""],
    numbers: tuple[Priority | None, ...],
    *,
    groups: tuple[int, ...],
    rules: tuple[Kind | None, ...],
) -> Int[Array, " G"]:
    levels = []
    for index, (pool, number, rule, priority) in enumerate(zip(pools, groups, rules, numbers)):
        of_task = jax.random.fold_in(key, index)
        if pool is None:
            levels.append(jnp.full(number, -1))
        elif rule is None or priority is None:
            levels.append(pool.level[choose_evenly(of_task, pool, number)])
        else:
            chosen = choose_by_priority(of_task, pool, number, iteration, rule, priority)
            levels.append(pool.level[chosen])
    return jnp.concatenate(levels)


def after(
    pools: Pools | None, trajectory: Trajectory, settings: RolloutSettings, config: Config, iteration: int
) -> tuple[Pools | None, dict[str, jax.Array]]:
    """The pools after the episodes of an iteration, and metrics levels/TASK/NAME, see `level_sampling.summary`."""
    if pools is None:
        return None, {}
    rule = reward_rule(settings, build_inputs.reward_parts(config))
    labels = tuple(task.label for task in config.tasks)
    return _after(pools, trajectory, rule, jnp.int32(iteration), labels=labels, size=config.rollout.group_size)


@functools.partial(jax.jit, static_argnames=("labels", "size"))
def _after(
    pools: Pools,
    trajectory: Trajectory,
    rule: RewardRule,
    iteration: Int[Array, ""],
    *,
    labels: tuple[str, ...],
    size: int,
) -> tuple[Pools, dict[str, jax.Array]]:
    groups = groups_of(trajectory, total_returns(trajectory, rule), size)
    spread = center_and_std(*groups)[1]
    spread = jnp.where(spread <= STD_FLOOR, 0.0, spread)
    level, task, known = trajectory.ids.level[::size], trajectory.ids.task[::size], jnp.any(groups.valid, axis=1)
    found: list[LevelPool | None] = []
    metrics: dict[str, jax.Array] = {}
    for index, (label, pool) in enumerate(zip(labels, pools)):
        if pool is not None:
            pool = observe(pool, level, spread, known & (task == index), iteration)
            metrics |= {f"levels/{label}/{name}": value for name, value in summary(pool, iteration).items()}
        found.append(pool)
    return tuple(found), metrics
