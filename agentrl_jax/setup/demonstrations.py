"""Demonstrations: optimal or random plans as trajectories, in the same environments and text as a rollout.

Shapes: `E` episodes, `T` turns, `A` actions of one turn.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.rollout.envs.batched_env import BatchedEnv, CompiledEnv, Task
from agentrl_jax.rollout.envs.level_splits import LevelSplits, TaskLevels
from agentrl_jax.rollout.recording import empty_trajectory
from agentrl_jax.rollout.trajectory import EpisodeIds, Response, RolloutSettings, Trajectory
from agentrl_jax.text.grammar import ParsedResponse
from agentrl_jax.text.prompt import response as canonical_response
from envs_jax import registry
from envs_jax.budget import Budget
from envs_jax.splits import Split

MAX_BATCHES = 64
"""Most batches of levels that are drawn, each of the wanted number, before too few different ones is an error."""


def split_plans(plans: list[np.ndarray], turns: int, actions_per_turn: int) -> np.ndarray:
    """Cuts plans into turns of `actions_per_turn` actions: i32[E, T, A], padded with -1.

    Raises:
        ValueError: a plan does not fit in T turns.
    """
    table = np.full((len(plans), turns * actions_per_turn), -1, np.int32)
    for row, plan in zip(table, plans):
        if len(plan) > len(row):
            raise ValueError(f"a plan of {len(plan)} actions does not fit in {turns} turns of {actions_per_turn}")
        row[: len(plan)] = plan
    return table.reshape(len(plans), turns, actions_per_turn)


def check_imitable(batched_env: CompiledEnv, max_response_tokens: int, plans: str) -> None:
    """Checks that every task has plans ("optimal" or "random") whose turns fit in L = `max_response_tokens` tokens.

    Raises:
        ValueError: a task has no planner and needs one, or a canonical response is longer than L.
    """
    per_turn = batched_env.max_actions_per_turn
    for task in batched_env.tasks:
        if plans == "optimal" and registry.spec(task.name).plan is None:
            raise ValueError(
                f"{task.name} has no planner to imitate; set imitation.plans to random, which teaches the format only, "
                "or imitation.levels to 0"
            )
        longest = task.prompt.max_response_tokens(per_turn)
        if longest > max_response_tokens:
            raise ValueError(
                f"max_response_tokens is {max_response_tokens}, but a response of {per_turn} actions in {task.name} "
                f"takes {longest}; set prompt.max_response_tokens to at least {longest} or lower "
                "prompt.max_actions_per_turn"
            )


def demonstrations(
    batched_env: CompiledEnv,
    splits: LevelSplits,
    key: jax.Array,
    *,
    plans: str,
    levels: int,
    turns: int,
    max_response_tokens: int,
    max_actions: int,
    context: str,
) -> Trajectory:
    """Makes demonstrations on training levels of every task.

    Args:
        batched_env: compiled tasks.
        splits: how their levels are split.
        key: decides levels and random plans.
        plans: "optimal": shortest plans, found on the host; levels without a plan that fits are skipped. "random": a
            uniform number of uniform random actions; they teach the response format but not which actions are good,
            and work for any environment.
        levels: different levels per task with optimal plans; demonstrations per task with random ones.
        turns: T.
        max_response_tokens: L.
        max_actions: primitive actions of an episode.
        context: "full" or "single_turn", as the learner will read it.

    Raises:
        ValueError: too few different levels have an optimal plan that fits, or as `check_imitable`.
    """
    check_imitable(batched_env, max_response_tokens, plans)
    limit = Budget(max_actions, turns, batched_env.max_actions_per_turn).reachable
    found = (_optimal_plans if plans == "optimal" else _random_plans)(batched_env, splits, key, levels, limit)
    actions = split_plans(found.actions, turns, batched_env.max_actions_per_turn)
    rows = jnp.arange(len(actions), dtype=jnp.int32)
    ids = EpisodeIds(
        group=rows,
        member=jnp.zeros_like(rows),
        task=jnp.asarray(found.task, jnp.int32),
        level=jnp.asarray(found.level, jnp.int32),
    )
    settings = RolloutSettings(
        temperature=jnp.ones(len(actions), jnp.float32),
        horizon=jnp.int32(turns),
        max_actions=jnp.int32(max_actions),
        env_params=found.env_params,
        split=splits.of(Split.TRAIN),
    )
    play = jax.jit(functools.partial(demonstrate, batched_env, max_response_tokens, context=context))
    return play(key, settings, ids, jnp.asarray(actions))


class _Plans(NamedTuple):
    """Action ids of E episodes, their task i[E] and row i[E] in the task's level pack; -1 where the key decides."""

    actions: list[np.ndarray]
    task: np.ndarray
    level: np.ndarray
    env_params: tuple[Any, ...]


def _optimal_plans(batched_env: CompiledEnv, splits: LevelSplits, key: jax.Array, levels: int, limit: int) -> _Plans:
    packs, plans = [], []
    for index, (task, divided) in enumerate(zip(batched_env.tasks, splits.tasks)):
        boards, actions = _planned(task, divided, jax.random.fold_in(key, index), levels, limit)
        packs.append(boards)
        plans.append(actions)
    params = tuple(
        dataclasses.replace(task.env_params, levels=jnp.asarray(pack)) for task, pack in zip(batched_env.tasks, packs)
    )
    return _Plans(
        [plan for actions in plans for plan in actions],
        np.repeat(np.arange(len(plans)), [len(actions) for actions in plans]),
        np.concatenate([np.arange(len(actions)) for actions in plans]),
        params,
    )


def _planned(
    task: Task, divided: TaskLevels, key: jax.Array, levels: int, limit: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The first distinct training levels i8[n, H, W] drawn from the key whose optimal plan fits, and their plans."""
    plan = registry.spec(task.name).plan
    assert plan is not None
    found: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}
    tried: set[bytes] = set()
    for batch in range(MAX_BATCHES):
        keys = jax.random.split(jax.random.fold_in(key, batch), levels)
        for board in registry.draw_levels(task.env, task.env_params, keys, divided.split(Split.TRAIN)):
            if board.tobytes() in tried or len(found) == levels:
                continue
            tried.add(board.tobytes())
            actions = plan(board)
            if actions is not None and 0 < len(actions) <= limit:
                found[board.tobytes()] = board, actions
        if len(found) == levels:
            break
    else:
        raise ValueError(
            f"imitation.levels is {levels}, but {MAX_BATCHES * levels} draws of {task.name} hold only {len(found)} "
            f"different training levels with a plan of at most {limit} actions; lower it or raise the limits"
        )
    return np.stack([board for board, _ in found.values()]), [actions for _, actions in found.values()]


def _random_plans(batched_env: CompiledEnv, splits: LevelSplits, key: jax.Array, levels: int, limit: int) -> _Plans:
    draw = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    actions = [
        draw.integers(task.env.num_actions, size=draw.integers(1, limit, endpoint=True))
        for task in batched_env.tasks
        for _ in range(levels)
    ]
    tasks = np.repeat(np.arange(len(batched_env.tasks)), levels)
    return _Plans(actions, tasks, np.full(len(tasks), -1), tuple(task.env_params for task in batched_env.tasks))


def demonstrate(
    batched_env: CompiledEnv,
    max_response_tokens: int,
    key: jax.Array,
    settings: RolloutSettings,
    ids: EpisodeIds,
    actions: jax.Array,
    *,
    context: str,
) -> Trajectory:
    """Plays given actions in the canonical response format and records what a rollout would.

    Args:
        batched_env: environments and prompts.
        max_response_tokens: L.
        key: key of the levels and of the environments' noise.
        settings: as for a rollout.
        ids: E episodes.
        actions: i32[E, T, A], padded with -1; a turn without actions is not played.
        context: "full" or "single_turn", as the learner will read it.

    Returns:
        A trajectory whose response tokens count as sampled, with log-probability 0.
    """
    count = jnp.sum(actions >= 0, axis=2)

    def write(task: jax.Array, chosen: jax.Array, count: jax.Array):
        branches = [
            lambda a, n, t=t: canonical_response(t.prompt, a, n, max_tokens=max_response_tokens)
            for t in batched_env.tasks
        ]
        return jax.lax.switch(task, branches, chosen, count)

    by_turn = jax.vmap(write, in_axes=(None, 0, 0))
    tokens, length = jax.vmap(by_turn)(ids.task, jnp.maximum(actions, 0), count)
    parsed = ParsedResponse(actions=actions, num_valid=count, num_parsed=count, format_ok=count > 0)
    return play_responses(batched_env, key, settings, ids, tokens, length * (count > 0), parsed, context=context)


def play_responses(
    batched_env: BatchedEnv,
    key: jax.Array,
    settings: RolloutSettings,
    ids: EpisodeIds,
    tokens: jax.Array,
    length: jax.Array,
    parsed: ParsedResponse,
    *,
    context: str,
) -> Trajectory:
    """Plays given responses, which include their end-of-turn token, and records what a rollout would.

    Args:
        batched_env: environments and prompts.
        key: key of the levels and the environments' noise.
        settings: as for a rollout.
        ids: E episodes.
        tokens: i32[E, T, L] responses, padded on the right.
        length: i32[E, T] their lengths; an episode ends before its first response of length 0.
        parsed: the parsed responses, leaves [E, T, ...]; unused by an environment that parses responses itself.
        context: "full" or "single_turn", as the learner will read it.

    Returns:
        A trajectory whose response tokens count as sampled, with log-probability 0.
    """
    episodes, turns = length.shape
    state, message = batched_env.reset(key, settings, ids)

    def turn(carry, said):
        state, message, playing = carry
        tokens, length, parsed = said
        playing &= length > 0
        nothing = jnp.zeros(tokens.shape, jnp.float32)
        response = Response(tokens=tokens, length=length * playing, logprob=nothing, ended=jnp.ones(episodes, bool))
        observation, observation_length, overflow = message.tokens, message.length * playing, message.overflow & playing
        state, result, message = batched_env.step(
            settings, state, response, parsed, playing, new_context=context == "single_turn"
        )
        over = result.terminated | result.truncated | result.failed
        return (state, message, playing & ~over), (observation, observation_length, response, result, playing, overflow)

    everyone = jnp.ones(episodes, bool)
    by_turn = jax.tree.map(lambda x: x.swapaxes(0, 1), (tokens, length, parsed))
    _, recorded = jax.lax.scan(turn, (state, message, everyone), by_turn, length=turns)
    observation, observation_length, response, result, played, overflow = jax.tree.map(
        lambda x: x.swapaxes(0, 1), recorded
    )
    return empty_trajectory(batched_env, ids, turns, tokens.shape[2]).replace(
        observation=observation,
        observation_length=observation_length,
        response=response,
        turn=result,
        num_turns=jnp.sum(played, axis=1, dtype=jnp.int32),
        overflow=jnp.any(overflow, axis=1),
    )
