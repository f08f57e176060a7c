"""Preference pairs from the environment's planner: the start of a shortest plan against what the policy sampled there.

Before the stage, the policy plays training levels. Of all situations in which it had to act, as many as there were
levels are sampled. A situation makes a pair where the sampled response was worse than the plan: it had no action, or a
shortest plan after it takes more actions in all. Both answers follow the same context, token for token, so that no
second rollout is needed.

The pairs are kept in the run folder, see `explored`, because a run that is resumed later has no longer the policy that
played.
"""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from agentrl_jax.config import Config
from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.eval_set import EvalSet
from agentrl_jax.learner.state import TrainState
from agentrl_jax.offline.rows import Row, TokenRows
from agentrl_jax.offline.stage_data import StageData
from agentrl_jax.rollout.envs.batched_env import Task
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.rollout.trajectory import Trajectory, level_ids
from agentrl_jax.setup.agents import context_of
from agentrl_jax.setup.demonstrations import PLANNED_AT_ONCE
from agentrl_jax.text import prompt as prompts
from agentrl_jax.train.dagger import sampled_situations
from agentrl_jax.train.explored import Explored, ExploredFiles, training_levels
from agentrl_jax.train.from_data import FromData
from envs_jax import registry
from envs_jax.budget import Budget

TEMPERATURE = 1.0
"""Of the policy's sampling."""


class StepPairs(FromData):
    """The stage dpo with `levels`: see `FromData`."""

    def begin(self, state: TrainState) -> TrainState:
        """Plays, searches and keeps the pairs; then as `FromData.begin`."""
        found = self._files().read(0, must_exist=False)
        if found is None:
            found = self._found(
                state.merged_params(), functools.partial(self.progress.stop_if_asked, self.first_row, state)
            )
            self._files().write(0, found)
        self.use(self._stage_data(found))
        return super().begin(state)

    def read(self) -> StageData:
        """The pairs of the run's folder; a `UserError` where they are gone."""
        found = self._files().read(0, must_exist=True)
        assert found is not None
        return self._stage_data(found)

    def _files(self) -> ExploredFiles:
        return ExploredFiles(self.progress.folder.path, self.index)

    def _stage_data(self, found: Explored) -> StageData:
        pairs = [[first, first + 1] for first in range(0, len(found.rows), 2)]
        assert self._pairs is not None
        if not pairs:
            why = "on which every response was as good as a plan, or no plan fits; play more levels, or leave dpo out"
            raise UserError.of(f"stages.{self.index}.levels", self._pairs.levels, why)
        levels = [*dict.fromkeys(found.levels)]
        return StageData(found.rows, pairs, TokenRows.of([]), levels, Counter(), "", packed=False, pairs=True)

    def _found(self, params: Any, between: Callable[[], None]) -> Explored:
        assert self._pairs is not None
        rng = np.random.default_rng(np.asarray(jax.random.key_data(self.key)))
        rows, levels, success = list[Row](), list[str](), list[float]()
        for chosen in training_levels(self._held_out, self.key):
            count = chosen.number(self._pairs.levels)
            trajectory = chosen.play(params, count, TEMPERATURE, between=between)
            self.progress.midway.add(trajectory)
            success.append(float(np.mean(trajectory.success)))
            found = pairs_of_level_set(self.parts.config, chosen, trajectory, rng, count, between)
            rows += [row for pair in found for row in pair]
            levels += level_ids(trajectory)
        pairs = len(rows) // 2
        self.progress.view.note(f"{self.name}: {pairs} pairs of {len(levels)} levels, {np.mean(success):.1%} solved")
        return Explored(TokenRows.of(rows), levels, float(np.mean(success)))


def pairs_of_level_set(
    config: Config,
    levels: EvalSet,
    trajectory: Trajectory,
    rng: np.random.Generator,
    count: int,
    between: Callable[[], None],
) -> list[tuple[Row, Row]]:
    """The pairs of situations in episodes on levels of one task: the chosen row, then the rejected one."""
    task = cast(Task, levels.batched_env.tasks[levels.task])
    spec, boards = registry.spec(task.name), levels.boards(count)
    plan_after = spec.plan_after
    assert plan_after is not None, "the configuration is checked"
    episode, turn = sampled_situations(trajectory, count, rng)
    _, turns, per_turn = trajectory.turn.actions.shape
    limit = Budget(config.prompt.max_actions, turns, per_turn).reachable
    numbers = np.arange(turns)[:, None]

    def plans(until: Int[np.ndarray, " N"]) -> list[Any]:
        """Plans after the policy's actions in the turns before some."""
        taken = np.where(numbers < until[:, None, None], trajectory.turn.actions[episode], -1).reshape(len(episode), -1)
        found: list[Any] = []
        for begin in range(0, len(episode), PLANNED_AT_ONCE):
            between()
            some = slice(begin, begin + PLANNED_AT_ONCE)
            found += plan_after(task.env, task.env_params, boards[episode[some]], limit, taken[some])
        return found

    best, after = plans(turn), plans(turn + 1)
    used = (trajectory.turn.actions[episode, turn] >= 0).sum(axis=1)
    # A planner has no plan where the level is solved.
    solved = trajectory.success[episode] & (turn + 1 == trajectory.num_turns[episode])
    cost = [
        taken if ended else np.inf if rest is None or not taken else taken + len(rest)
        for taken, ended, rest in zip(used, solved, after)
    ]
    better = [index for index, plan in enumerate(best) if plan is not None and 0 < len(plan) < cost[index]]
    actions = np.full((len(better), per_turn), -1, np.int32)
    for row, index in zip(actions, better):
        part = best[index][:per_turn]
        row[: len(part)] = part
    chosen = _responses(task.prompt, actions, config.prompt.max_response_tokens)
    contexts = _contexts(config, trajectory)
    pairs = []
    for index, wanted in zip(better, chosen):
        before, sampled = contexts(int(episode[index]), int(turn[index]))
        if config.prompt.stop_at_answer:  # which ends a response before the token that ends the turn
            wanted = wanted[:-1]
        if wanted != sampled:
            pairs.append(tuple(Row([*before, *x], [False] * len(before) + [True] * len(x)) for x in (wanted, sampled)))
    return cast(list[tuple[Row, Row]], pairs)


def _responses(prompt: prompts.Prompt, actions: Int[np.ndarray, "N A"], longest: int) -> list[list[int]]:
    """The canonical responses with these actions, as token ids."""
    if not len(actions):
        return []

    def response(actions):
        return prompts.response(prompt, jnp.maximum(actions, 0), jnp.sum(actions >= 0), longest)

    tokens, length = jax.device_get(jax.vmap(response)(jnp.asarray(actions)))
    return [row[:size].tolist() for row, size in zip(tokens, length)]


def _contexts(config: Config, trajectory: Trajectory) -> Callable[[int, int], tuple[list[int], list[int]]]:
    """What gives the tokens before the response of an episode's turn, and those of the response."""
    packed = pack_trajectories(jax.tree.map(jnp.asarray, trajectory), context_of(config))
    tokens, position, mask, turns, episodes = jax.device_get(
        (packed.tokens, packed.position, packed.response_mask, packed.turn, packed.episode)
    )

    def found(episode: int, turn: int) -> tuple[list[int], list[int]]:
        for row in np.flatnonzero(episodes == episode):
            here = position[row][mask[row] & (turns[row] == turn)]
            if len(here):
                return tokens[row, : here[0]].tolist(), tokens[row, here].tolist()
        raise AssertionError(f"episode {episode} has no turn {turn}")

    return found
