"""Plans of levels as hints in prompts, searched by the planners of the environments, on the host.

A hint names the actions of a plan as responses do, token for token: "\\nPlan: Up||Left\\n".

Shapes: `E` episodes, `X` tokens of the longest hint.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Int8

from agentrl_jax.config import PromptConfig
from agentrl_jax.errors import BadValue
from agentrl_jax.rollout import rng
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.level_splits import LevelSplits
from agentrl_jax.rollout.trajectory import EpisodeIds, Hints
from agentrl_jax.text.pieces import PieceTable, encode_piece
from agentrl_jax.text.prompt import Prompt
from agentrl_jax.text.tokenizer import Tokenizer
from envs_jax import registry
from envs_jax.budget import Budget
from envs_jax.splits import Split

Plan = Int[np.ndarray, " L"]

BEFORE, AFTER = "\nPlan: ", "\n"

ALL_TURNS = 1 << 30

MAX_KEPT = 1 << 17
"""Plans that are kept at most; levels are played again."""


class PlanHints:
    """Searches plans and writes them as hints."""

    def __init__(self, batched_env: CompiledEnv, prompt: PromptConfig, turns: Sequence[int], tokenizer: Tokenizer):
        """Searches nothing yet; `turns` are those of each task's episodes.

        Raises:
            ValueError: the prompts are not encoded by pieces.
        """
        self._tasks = batched_env.tasks
        per_turn = batched_env.max_actions_per_turn
        self._limits = [Budget(prompt.max_actions, most, per_turn).reachable for most in turns]
        self._before, self._after = (encode_piece(tokenizer, piece) for piece in (BEFORE, AFTER))
        self._actions = [_words(task.prompt, len(task.env.actions)) for task in self._tasks]
        self._at = batched_env.hint_at
        self._known: dict[tuple[int, bytes], Plan | None] = {}

    @property
    def width(self) -> int:
        """X, enough for every plan that fits into an episode."""
        longest = max(len(between) + max(map(len, names)) for names, between in self._actions)
        return len(self._before) + max(self._limits) * longest + len(self._after)

    def check(self, key: str, value: object) -> None:
        """Raises ValueError, in the name of a setting that needs plans, if a task has no planner."""
        for task in self._tasks:
            if registry.spec(task.name).plan is None or not task.has_boards:
                raise BadValue.of(key, value, f"but {task.name} has no planner; leave it out")

    def search(self, task: int, boards: Int8[np.ndarray, "n H W"]) -> list[Plan | None]:
        """Plans of levels of a task that fit into an episode; None where there is none."""
        of, plan = self._tasks[task], registry.spec(self._tasks[task].name).plan
        assert plan is not None
        keys = [(task, board.tobytes()) for board in boards]
        new = {key: board for key, board in zip(keys, boards) if key not in self._known}
        if new:
            if len(self._known) + len(new) > MAX_KEPT:
                self._known.clear()
                new = dict(zip(keys, boards))
            limit = self._limits[task]
            found = plan(of.env, of.env_params, np.stack([*new.values()]), limit)
            fits = (None if each is None or not 0 < len(each) <= limit else each for each in found)
            self._known.update(zip(new, fits))
        return [self._known[key] for key in keys]

    def of_episodes(
        self, key: jax.Array, ids: EpisodeIds, splits: LevelSplits
    ) -> tuple[list[Plan | None], list[Plan | None]]:
        """The plans of training episodes, whose levels are those of a rollout with this key; `ids` are NumPy arrays.

        Also returns wrong ones, those of other levels of the same task, see `of_others`.
        """
        plans: list[Plan | None] = [None] * len(ids.group)
        wrong = [*plans]
        for index, (task, levels) in enumerate(zip(self._tasks, splits.tasks)):
            own = np.flatnonzero(ids.task == index)
            _, first, group = np.unique(ids.group[own], return_index=True, return_inverse=True)
            heads = jax.tree.map(lambda x, rows=own[first]: x[rows], ids)
            if not len(first):
                continue
            if np.all(heads.level >= 0):
                pack = np.asarray(task.env_params.levels)
                boards = pack[heads.level % len(pack)]
            else:
                split = levels.split(Split.TRAIN)
                boards = registry.sample_levels(task.env, task.env_params, rng.level_key(key, heads), split)
            found = self.search(index, boards)
            others = of_others(found)
            for row, number in zip(own, group):
                plans[row], wrong[row] = found[number], others[number]
        return plans, wrong

    def write(
        self, plans: Sequence[Plan | None], task: Int[np.ndarray, " E"], turns: Int[np.ndarray, " E"] | None = None
    ) -> Hints:
        """The hints of E episodes with these plans and tasks; an episode without a plan has none.

        `turns` are those that a teacher judges; None: all of episodes that have a plan.
        """
        tokens = np.zeros((len(plans), self.width), np.int32)
        length = np.zeros(len(plans), np.int32)
        for row, (plan, index) in enumerate(zip(plans, task)):
            if plan is None or not len(plan):
                continue
            names, between = self._actions[index]
            text = [*self._before, *names[plan[0]]]
            for action in plan[1:]:
                text += [*between, *names[action]]
            text += self._after
            tokens[row, : len(text)], length[row] = text, len(text)
        judged = np.where(length > 0, ALL_TURNS if turns is None else turns, 0).astype(np.int32)
        return Hints(*map(jnp.asarray, (tokens, length, self._at[np.asarray(task)], judged)))


def turns_on_plan(actions: Int[np.ndarray, "E T A"], plans: Sequence[Plan | None]) -> Int[np.ndarray, " E"]:
    """How many turns of each episode began on its plan: all actions before them, padded with -1, are those of the plan.

    0 for an episode without a plan.
    """
    found = np.zeros(len(plans), np.int32)
    for row, (taken, plan) in enumerate(zip(actions, plans)):
        if plan is None:
            continue
        done = 0
        for turn in taken:
            found[row] += 1
            own = turn[turn >= 0]
            if not len(own) or not np.array_equal(own, plan[done : done + len(own)]):
                break
            done += len(own)
    return found


def of_others(plans: Sequence[Plan | None]) -> list[Plan | None]:
    """For each plan the next one, in a circle, that differs from it; the next one if none does."""
    count = len(plans)

    def other(index: int) -> Plan | None:
        own, following = plans[index], [plans[(index + step) % count] for step in range(1, count)]
        for plan in following:
            if plan is not None and (own is None or not np.array_equal(plan, own)):
                return plan
        return following[0] if following else None

    return [other(index) for index in range(count)]


def _words(prompt: Prompt, actions: int) -> tuple[list[list[int]], list[int]]:
    """Tokens of the names of a task's actions, and between two."""
    if not isinstance(prompt.table, PieceTable):
        raise BadValue.of("prompt.encoder", prompt.encoder, "whose text has no place for a hint; use pieces")
    tokens, offsets = np.asarray(prompt.table.tokens), np.asarray(prompt.table.offsets)

    def of(piece: int) -> list[int]:
        return tokens[offsets[piece] : offsets[piece + 1]].tolist()

    return [of(prompt.action_ids + action) for action in range(actions)], of(prompt.response_ids[1][0])
