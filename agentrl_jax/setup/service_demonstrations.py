"""Episodes of scripted policies in services, as trajectories to imitate.

Shapes: `E` episodes, `T` turns, `L` tokens of a response.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.config import Config
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.services.shadow_env import NoisyOracle
from agentrl_jax.setup import build
from agentrl_jax.setup.demonstrations import play_responses
from agentrl_jax.setup.service_tasks import OPENINGS, Played, ServedTask, Services, play_all
from agentrl_jax.text.grammar import ParsedResponse
from agentrl_jax.text.tokenizer import Tokenizer


def service_demonstrations(
    config: Config, services: Services, batched_env: HostEnv, tokenizer: Tokenizer, key: jax.Array
) -> tuple[Trajectory, jax.Array]:
    """Plays `imitation.levels` training items of every task by a scripted policy, and records what a rollout would.

    No item is drawn twice; if there are fewer items, all are played. Skipped are episodes of the oracle that do not
    solve their item within `prompt.max_turns`, and episodes with a response longer than `prompt.max_response_tokens`,
    an observation that would be truncated, or more tokens than `rollout.context_tokens`.

    Returns:
        E episodes, and which of their turns are imitated, bool[E, T]: all but the random ones of `imitation.noise`.

    Raises:
        ValueError: a task has no oracle and needs one, or no episode is left.
    """
    turns, longest = config.prompt.max_turns, config.prompt.max_response_tokens
    chosen: list[tuple[int, int, np.ndarray, np.ndarray, np.ndarray]] = []
    for index, task in enumerate(services.tasks):
        draw = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key, index))))
        rows = draw.permutation(len(task.training))[: config.imitation.levels].tolist()
        for row, episode in zip(rows, _episodes(config, task, rows)):
            responses = [tokenizer.encode(response_text(config, action)) for action in episode.actions]
            said = [[*ids, tokenizer.end_of_turn_id] for ids in responses]
            wanted = episode.solved or config.imitation.plans == "random"
            if wanted and said and max(map(len, said)) <= longest:
                chosen.append((index, row, *_padded(said, turns, longest), ~_noise(config, episode.item)))
    if not chosen:
        raise ValueError(
            f"no episode of {config.imitation.levels} items can be imitated: none is solved in {turns} turns with "
            f"responses of {longest} tokens; raise prompt.max_turns or prompt.max_response_tokens"
        )
    script = _Script(*(np.array(column) for column in zip(*chosen)))
    trajectory = _recorded(config, batched_env, key, script)
    kept = _usable(config, trajectory)
    return jax.tree.map(lambda x: x[kept], trajectory), jnp.asarray(script.imitated[kept])


class _Script(NamedTuple):
    """Scripted responses of E episodes.

    Shapes: task i[E], row of the task's items i[E], tokens i32[E, T, L], length i32[E, T], and whether a turn is
    imitated, bool[E, T].
    """

    task: np.ndarray
    row: np.ndarray
    tokens: np.ndarray
    length: np.ndarray
    imitated: np.ndarray


def _padded(said: Sequence[Sequence[int]], turns: int, longest: int) -> tuple[np.ndarray, np.ndarray]:
    tokens, length = np.zeros((turns, longest), np.int32), np.zeros(turns, np.int32)
    for turn, ids in enumerate(said):
        tokens[turn, : len(ids)] = ids
        length[turn] = len(ids)
    return tokens, length


def response_text(config: Config, action: str) -> str:
    """Returns a response with an action and no thought, without the text that is inserted before it."""
    opening = "" if config.prompt.forced_tag else OPENINGS[config.prompt.think]
    return opening + (f"\n\n\nAction:\n{action}" if config.prompt.think else f" {action}")


def _episodes(config: Config, task: ServedTask, rows: list[int]) -> list[Played]:
    service, items = task.service, [task.training[row] for row in rows]
    if config.imitation.plans == "random":
        return play_all(task, lambda item: service.random(item, config.seed + item), items, config)
    if config.imitation.noise:
        return play_all(
            task, lambda item: NoisyOracle(service, item, _noise(config, item), config.seed + item), items, config
        )
    if service.oracle is None:
        raise ValueError(
            f"{task.config.label} has no oracle to imitate; set imitation.plans to random, which teaches the format "
            "only, or imitation.levels to 0"
        )
    return play_all(task, service.oracle, items, config)


def _noise(config: Config, item: int) -> np.ndarray:
    """In which turns of an item's demonstration the random policy acts, bool[T]."""
    return np.random.default_rng((config.seed, item)).random(config.prompt.max_turns) < config.imitation.noise


def _recorded(config: Config, batched_env: HostEnv, key: jax.Array, script: _Script) -> Trajectory:
    """Plays a script, with at most as many episodes at once as a rollout has."""
    count, turns = script.length.shape
    size = min(count, max(build.training_ids(config).group.shape[0], config.train.validation_episodes))
    settings = build.rollout_settings(config, batched_env, size, 1.0)
    nothing = jnp.zeros((size, turns), jnp.int32)
    parsed = ParsedResponse(
        actions=nothing[..., None] - 1, num_valid=nothing, num_parsed=nothing, format_ok=nothing > 0
    )
    program = jax.jit(functools.partial(play_responses, batched_env, context=config.rollout.context))
    parts = []
    for first in range(0, count, size):
        part = _Script(*(np.resize(x[first : first + size], (size, *x.shape[1:])) for x in script))
        number = np.arange(first, first + size)
        ids = build.episode_ids(group=number, member=np.zeros(size), task=part.task, level=part.row)
        played = program(key, settings, ids, jnp.asarray(part.tokens), jnp.asarray(part.length), parsed)
        parts.append(jax.tree.map(np.asarray, played))
        batched_env.host_episodes.clear()
    return jax.tree.map(lambda *x: jnp.asarray(np.concatenate(x)[:count]), *parts)


def _usable(config: Config, trajectory: Trajectory) -> np.ndarray:
    """Indices i[.] of the episodes that fit."""
    lost = int(np.sum(trajectory.failed))
    if lost:
        raise ValueError(f"{lost} of {len(trajectory.failed)} demonstrations failed in the service; try again")
    total = trajectory.prompt_length + jnp.sum(trajectory.observation_length + trajectory.response.length, axis=1)
    limit = config.rollout.context_tokens
    fits = total <= limit if limit and config.rollout.context == "full" else total > 0
    kept = np.flatnonzero(np.asarray(fits & ~trajectory.overflow))
    if not kept.size:
        raise ValueError(
            "no episode can be imitated without cutting its texts; raise env.observation_tokens or "
            "rollout.context_tokens"
        )
    return kept
