"""Boards of recorded episodes.

A record stores actions and hashes of states, but no states: a compiled environment is a pure function of keys and
actions, so they are computed again, and compared with the hashes.

Shapes: `R` episodes of one task, `T` turns, `A` actions of one turn, `N` primitive actions of an episode at most.
"""

import dataclasses
import functools
import logging
import operator
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32, Key, UInt32

from agentrl_jax.config import Config, TaskConfig, alone
from agentrl_jax.environments.kinds import kind_of
from agentrl_jax.errors import UserError, refusals, shortened
from agentrl_jax.rollout import rng
from agentrl_jax.rollout.envs.batched_env import start_state
from agentrl_jax.rollout.envs.host_episodes import text_hash
from agentrl_jax.rollout.envs.level_splits import TaskLevels, task_levels
from agentrl_jax.rollout.trajectory import EpisodeIds
from agentrl_jax.runs.rollout_records import Header, RolloutRecord
from agentrl_jax.services.environments.compiled import item_key, noise_key
from agentrl_jax.services.items import load_items
from agentrl_jax.setup import run_keys
from agentrl_jax.setup.level_files import make_env
from envs_jax.environment import TextEnvironment
from envs_jax.registry import spec
from envs_jax.scenes import SPRITES, Scene, SceneFunction, grid_scene, text_scene
from envs_jax.splits import Split

__all__ = ["SPRITES", "run_scenes"]

_log = logging.getLogger(__name__)

_ROWS = 64
"""Most episodes of one dispatch, which bounds the memory for their states."""


def run_scenes(
    run: str | os.PathLike[str],
    config: Config,
    record: RolloutRecord,
    note: Callable[[str], None] = _log.warning,
) -> list[list[Scene]] | None:
    """Computes the scenes of every recorded episode of an iteration of a run.

    The scenes of an episode are those of its start and of the state after each executed primitive action, see
    `envs_jax.scenes`, each with two more keys: `turn`, the index of the turn of the action, 0 for the start, and
    `action`, the name of the action, None for the start. A turn in which nothing was executed has no scene. Where a
    level begins again, there is one more scene of its start, after those of the last turn of the attempt before.

    An episode whose states are not those of the record, because code, configuration or levels have changed, has no
    scenes, and `note` is called once with the number of such episodes; nor has an episode of an environment that has no
    scenes. Returns None if no environment of the run has any, for instance because they are services; a compiled
    environment that a scripted policy has played as a service in its own process has some.

    Raises:
        UserError: the scene of an environment is not valid, see `envs_jax.scenes.grid_scene`.
    """
    scripted = scripted_here(config, record.header)
    scenes: list[list[Scene]] = [[] for _ in record.task]
    drawn, missing = False, 0
    same_tasks = record.header.tasks == tuple(task.label for task in config.tasks)
    for index, (task, kind) in enumerate(zip(config.tasks, config.kinds)):
        own, rows = alone(config, index), np.flatnonzero(record.task == index)
        if kind.stored or (kind.on_host and not scripted):
            continue
        try:
            replay = _replay_of(task.model_dump_json(), _ScriptedReplay if scripted else _Replay)
        except UserError as error:  # such as a level file that no longer exists
            note(f"{run}, {record.header.label}: no boards of {task.label}: {error}")
            continue
        if replay.scene is None:
            continue
        drawn = True
        found = replay.scenes(own, record, rows) if same_tasks else [None] * len(rows)
        missing += found.count(None)
        for row, of_episode in zip(rows, found):
            scenes[row] = of_episode or []
    if missing:
        note(
            f"{run}, {record.header.label}: {missing} of {len(scenes)} episodes have no boards: their states are not "
            "those of the record; the code, the configuration or the levels have changed since"
        )
    return scenes if drawn else None


def scripted_here(config: Config, header: Header) -> bool:
    """Whether a scripted policy has played a compiled environment as a service, in the process of the evaluation."""
    local = config.env.url == "local" and not any(kind_of(task.env).on_host for task in config.tasks)
    return local and header.evaluation is not None and header.evaluation.policy is not None


@dataclasses.dataclass(frozen=True, eq=False)
class _Replay:
    """Plays the episodes of one task again."""

    name: str
    env: TextEnvironment
    params: Any
    scene: SceneFunction | None
    levels: TaskLevels | None
    """How the levels are divided; None if there are no scenes."""

    def scenes(self, config: Config, record: RolloutRecord, rows: Int[np.ndarray, " R"]) -> list[list[Scene] | None]:
        """The scenes of some episodes of this task; None for one whose states are not those of the record."""
        size = min(len(rows), _ROWS)
        # The last chunk is filled up with episodes that are dropped, so that all chunks share one compiled program.
        chunks = [np.resize(rows[start : start + _ROWS], size) for start in range(0, len(rows), _ROWS)]
        return [scenes for chunk in chunks for scenes in self._chunk(config, record, chunk)][: len(rows)]

    def _chunk(self, config: Config, record: RolloutRecord, rows: Int[np.ndarray, " R"]) -> list[list[Scene] | None]:
        episodes = [_Executed.of_row(record, row) for row in rows]
        _, turns, per_turn = record.actions.shape
        attempts = 1 + int(record.attempt.max(initial=0))
        most = self._most_actions(config, turns * per_turn, attempts) + attempts - 1
        actions = np.full((len(rows), most + 1), -1, np.int32)
        for padded, episode in zip(actions, episodes):
            executed = episode.action[:most]
            padded[: len(executed)] = executed
        split, level_keys, noise_keys, level = self._drawn_from(config, record, rows)
        played = _play(self.env, self.params, jnp.int32(split), level_keys, noise_keys, level, actions)
        states, params = jax.device_get((played, self.params))
        found: list[list[Scene] | None] = []
        for i, (row, episode) in enumerate(zip(rows, episodes)):
            of_episode = jax.tree.map(operator.itemgetter(i), states)
            same = bool((episode.action < self.env.num_actions).all())
            same &= self._agrees(record, row, episode, of_episode, params)
            found.append(self._draw(episode, of_episode.state, params) if same else None)
        return found

    def _most_actions(self, config: Config, most: int, attempts: int) -> int:
        """Primitive actions of an episode at most, of the `most` that a record can hold."""
        return min(most, attempts * config.prompt.max_actions)

    def _agrees(self, record: RolloutRecord, row: int, episode: "_Executed", states: "_States", params: Any) -> bool:
        """Whether the states are those of the episode: at the start of every turn, and how each turn ended."""
        number, most = record.num_turns[row], len(states.terminated) - 1
        if not 0 < number <= record.reward.shape[1] or len(episode.action) > most:
            return False
        start, end = (np.searchsorted(episode.turn, np.arange(number), side) for side in ("left", "right"))
        hashes = self._hashes(states, start, params)
        ends = (states.terminated[end], record.terminated), (states.success[end], record.success)
        return all(
            np.array_equal(played, recorded[row, : len(played)])
            for played, recorded in (*ends, (hashes, record.state_hash))
        )

    def _hashes(self, states: "_States", starts: Int[np.ndarray, " T"], params: Any) -> UInt32[np.ndarray, "T 2"]:
        """What the record has as the hashes of the states at the start of turns, or of the first of these."""
        return np.asarray(states.state_hash)[starts]

    def _drawn_from(
        self, config: Config, record: RolloutRecord, rows: Int[np.ndarray, " R"]
    ) -> tuple[Split, Key[Array, " R"], Key[Array, " R"], Int[Array, " R"]]:
        """The split that levels were generated from, and each episode's keys of level and noise, and its level."""
        split, key = self._rollout_key(config, record.header)
        ids = EpisodeIds(*(jnp.asarray(x[rows]) for x in (record.group, record.member, record.task, record.level)))
        noise = rng.noise_key(key, ids, shared=config.rollout.shared_noise)
        return split, rng.level_key(key, ids), noise, ids.level

    def _rollout_key(self, config: Config, header: Header) -> tuple[Split, jax.Array]:
        """The split that levels were generated from, and the key of the rollout."""
        assert self.levels is not None
        evaluation = header.evaluation
        if evaluation is not None:
            key = run_keys.of_evaluation(evaluation.seed, evaluation.split)
            return self.levels.split(Split(evaluation.split)), key
        stream = run_keys.after_roll_backs(jax.random.key(config.seed), header.roll_backs)
        return self.levels.split(Split.TRAIN), run_keys.of_iteration(stream, run_keys.ROLLOUT, header.iteration - 1)

    def _draw(self, episode: "_Executed", states: Any, params: Any) -> list[Scene]:
        starts = iter(range(2, len(episode.action) + 2))
        names = [
            f"the start of attempt {next(starts)}" if action == _AGAIN else self.env.actions[action]
            for action in episode.action
        ]
        scenes = []
        for number, (turn, action) in enumerate([(0, None), *zip(episode.turn.tolist(), names)]):
            scene = self._scene_of(jax.tree.map(operator.itemgetter(number), states), params)
            scenes.append({"turn": turn, "action": action, **scene})
        return scenes

    def _scene_of(self, state: Any, params: Any) -> Scene:
        """The scene of a state; whatever stops the function, which may be a user's, is a `UserError`."""
        assert self.scene is not None
        where = f"the scene of {self.name}"
        try:
            with refusals(where):
                return _checked(self.scene(self.env, state, params))
        except UserError:
            raise
        except Exception as error:
            raise UserError.at(where, f"{type(error).__name__}: {shortened(error)}") from error


class _ScriptedReplay(_Replay):
    """Of episodes that a scripted policy has played as those of a service, which has items and hashes texts."""

    def _most_actions(self, config: Config, most: int, attempts: int) -> int:
        return most

    def _hashes(self, states: "_States", starts: Int[np.ndarray, " T"], params: Any) -> UInt32[np.ndarray, "T 2"]:
        return text_hash(self.env.render(jax.tree.map(operator.itemgetter(0), states.state), params))[None]

    def _drawn_from(
        self, config: Config, record: RolloutRecord, rows: Int[np.ndarray, " R"]
    ) -> tuple[Split, Key[Array, " R"], Key[Array, " R"], Int[Array, " R"]]:
        (task,) = config.tasks
        items = load_items(task.held_out, task.env)
        keys = jnp.stack([item_key(items[number]) for number in record.level[rows]])
        return Split.ANY, keys, jax.vmap(noise_key)(keys), jnp.full(len(rows), -1)


def _checked(scene: Scene) -> Scene:
    """The parts of a scene that a page draws, in their types; a function may write a scene without our helpers."""
    text = [str(line) for line in scene.get("text", ())]
    lists = [
        (str(part["title"]), [(str(name), str(note)) for name, note in part["entries"]])
        for part in scene.get("lists", ())
    ]
    return grid_scene(scene["cells"], text, lists) if scene["kind"] == "grid" else text_scene(text, lists)


@functools.lru_cache(maxsize=16)
def _replay_of(task: str, replay: type[_Replay]) -> _Replay:
    """The replay of a task, whose configuration is given as JSON; it is kept, so that programs are compiled once."""
    config = TaskConfig.model_validate_json(task)
    env, params = make_env(config)
    scene = spec(config.env).scene
    return replay(config.env, env, params, scene, None if scene is None else task_levels(env, params))


_AGAIN = -2
"""Stands between actions where the level begins again."""


class _Executed(NamedTuple):
    """The executed primitive actions of one episode, and the turn of each; `_AGAIN` is of the turn before."""

    turn: Int[np.ndarray, " N"]
    action: Int[np.ndarray, " N"]

    @classmethod
    def of_row(cls, record: RolloutRecord, row: int) -> "_Executed":
        """Those of a row of the record."""
        actions = record.actions[row, : max(record.num_turns[row], 0)]
        attempt = record.attempt[row, : len(actions)]
        again = np.diff(attempt, append=attempt[-1:]) != 0
        entries = np.concatenate([actions, np.where(again, _AGAIN, -1)[:, None]], axis=1)
        turn, number = np.nonzero(entries != -1)
        return cls(turn, entries[turn, number])


class _States(NamedTuple):
    """States of episodes: at the start, and after each of N primitive actions."""

    state: Any
    """Leaves [R, N + 1, ...]."""
    state_hash: UInt32[Array, "R N+1 2"]
    terminated: Bool[Array, "R N+1"]
    success: Bool[Array, "R N+1"]


@functools.partial(jax.jit, static_argnums=0)
def _play(
    env: TextEnvironment,
    params: Any,
    split: Int[Array, ""],
    level_keys: Key[Array, " R"],
    noise_keys: Key[Array, " R"],
    levels: Int[Array, " R"],
    actions: Int32[Array, "R N+1"],
) -> _States:
    """Plays primitive actions, as `CompiledEnv` and `RetryEnv` do; -1, which also ends each row, does nothing."""

    def episode(level_key, noise_key, level, actions):
        start, _ = start_state(env, level_key, level, jnp.bool_(True), params=params, split=split)

        def step(carry, action):
            state, noise_key, number = carry
            moved = env.step_env(rng.action_key(noise_key, number), state, jnp.maximum(action, 0), params)[1]
            after = jax.tree.map(lambda a, b: jnp.where(action >= 0, a, b), moved, state)
            after = jax.tree.map(lambda a, b: jnp.where(action == _AGAIN, a, b), start, after)
            flags = env.is_terminated(state, params), env.success(state, params)
            next_key = jnp.where(action == _AGAIN, rng.retry_noise_key(noise_key[None])[0], noise_key)
            number = jnp.where(action == _AGAIN, 0, number + (action >= 0))
            return (after, next_key, number), _States(state, env.state_hash(state, params), *flags)

        return jax.lax.scan(step, (start, noise_key, jnp.int32(0)), actions)[1]

    return jax.vmap(episode)(level_keys, noise_keys, levels, actions)
