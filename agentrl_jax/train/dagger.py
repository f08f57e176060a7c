"""Rounds of DAgger during imitation (Ross et al. 2011, arXiv 1011.0686): plans that take over from the policy.

Demonstrations alone show no situation into which only an imperfect policy gets. In a round the policy therefore plays
new training levels. Of all the situations in which it had to act, as many as there were levels are sampled, and a plan
of the kind that the run imitates is searched from each. The policy's turns and the plan after them become a
demonstration of which the plan alone is imitated, and which is added to all earlier ones. DAgger asks the expert for
one action in every situation of the policy; a search gives the whole plan at no further cost.

The plans of round N are kept as dagger/N.json in the run folder, because a run that is resumed later has no longer the
policy of the round.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.eval_set import EvalSet, Params
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.io import atomic_write
from agentrl_jax.parallel import hosts
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.packing import Sequences
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.setup import run_keys, start
from agentrl_jax.setup.agents import context_of
from agentrl_jax.setup.demonstrations import PLANNED_AT_ONCE
from agentrl_jax.setup.parts import RunParts
from agentrl_jax.setup.play_plans import Plans, PlayPlans
from agentrl_jax.train.explored import training_levels
from envs_jax import registry
from envs_jax.budget import Budget

TEMPERATURE = 1.0
"""Of the policy's sampling in a round."""

_Plan = list[Any]
"""A row of a round's file: level, turns of the policy before the plan, and the actions of both. The policy's turns are
padded with -1."""


@dataclasses.dataclass(frozen=True)
class Round:
    """What a round has found: for each task the policy's success, and rows of `_Plan`."""

    success: list[float]
    plans: list[list[_Plan]]
    levels: str
    """SHA-256 of the levels of all tasks."""


class Dagger:
    """The rounds of a run with compiled tasks, in their order."""

    def __init__(self, parts: RunParts, held_out: HeldOut, folder: Path, note: Callable[[str], None]):
        """`folder` is the run's, and `note` shows a line of progress. Nothing is played yet."""
        self._parts, self._folder, self._note = parts, folder / "dagger", note
        self._held_out = held_out

    def first_chunk(self, number: int) -> int:
        """The chunk of imitation, counted from 0, before which round `number` is played; rounds count from 1."""
        imitation = self._parts.config.imitation
        return imitation.chunks * number // (imitation.dagger_rounds + 1)

    def due(self, chunk: int) -> int:
        """Number of rounds that are played before a chunk."""
        rounds = self._parts.config.imitation.dagger_rounds
        return sum(self.first_chunk(number) <= chunk for number in range(1, rounds + 1))

    def demonstrations(
        self, number: int, chunk: int, params: Params, between: Callable[[], None]
    ) -> tuple[Sequences, Trajectory, dict[str, float]]:
        """Returns the rows to imitate, their episodes, and metrics of a round; plays it if it is due now.

        `params` are those before `chunk`, as `TrainState.merged_params` returns them. `between` is called between the
        dispatches of the policy's play and between the parts of the search; if it raises, the round begins again later.

        Raises:
            UserError: the file of an earlier round is gone or damaged.
        """
        sets = self._levels(number)
        found = self._read(number, sets, must_exist=chunk > self.first_chunk(number))
        if found is None:
            found = self._search(number, sets, params, between)
            self._write(number, found)
        count, solved = sum(map(len, found.plans)), float(np.mean(found.success))
        rounds = self._parts.config.imitation.dagger_rounds
        self._note(
            f"round {number} of {rounds}: {count} plans take over from the policy, whose success is {solved:.1%}"
        )
        trajectory, imitated = self._trajectories(number, sets, found)
        metrics = {"imitation/policy_success": solved, "imitation/dagger_plans": float(count)}
        return start.imitated_rows(self._parts.config, trajectory, imitated), trajectory, metrics

    @functools.cached_property
    def _play(self) -> PlayPlans:
        config, env = self._parts.config, cast(CompiledEnv, self._parts.train_env)
        return PlayPlans(env, self._parts.train_splits, config.prompt, context_of(config))

    def _key(self, number: int) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(self._parts.key, run_keys.DAGGER), number)

    def _levels(self, number: int) -> list[EvalSet]:
        """The training levels that the policy plays in a round: others in each, until a level file has no more."""
        rotation = (number - 1) * self._parts.config.imitation.dagger_levels
        return training_levels(self._held_out, self._key(number), rotation=rotation)

    def _count(self, levels: EvalSet) -> int:
        return levels.number(self._parts.config.imitation.dagger_levels)

    def _search(self, number: int, sets: list[EvalSet], params: Params, between: Callable[[], None]) -> Round:
        success, plans = [], []
        rng = np.random.default_rng(np.asarray(jax.random.key_data(self._key(number))))
        for levels in sets:
            count, task = self._count(levels), levels.batched_env.tasks[levels.task]
            self._note(f"round {number}: the policy plays {count} levels of {task.name}")
            trajectory = levels.play(params, count, TEMPERATURE, between=between)
            success.append(float(np.mean(trajectory.success)))
            episode, turn = sampled_situations(trajectory, count, rng)
            plans.append(self._plans(levels, trajectory, episode, turn, between))
        return Round(success, plans, self._digest(sets))

    def _digest(self, sets: list[EvalSet]) -> str:
        """Of the levels of a round, which another version of an environment may draw otherwise."""
        boards = [np.ascontiguousarray(levels.boards(self._count(levels))) for levels in sets]
        return hashlib.sha256(b"".join(of_task.tobytes() for of_task in boards)).hexdigest()

    def _plans(
        self,
        levels: EvalSet,
        trajectory: Trajectory,
        episode: Int[np.ndarray, " N"],
        turn: Int[np.ndarray, " N"],
        between: Callable[[], None],
    ) -> list[_Plan]:
        """Plans after the policy's actions before a turn of an episode, where they fit into the episode."""
        config, task = self._parts.config, levels.batched_env.tasks[levels.task]
        _, turns, per_turn = trajectory.turn.actions.shape
        spec, budget = registry.spec(task.name), Budget(config.prompt.max_actions, turns, per_turn).reachable
        plan_after = spec.exploring_after if config.imitation.plans == "exploring" else spec.plan_after
        assert plan_after is not None
        played = np.where(np.arange(turns)[:, None] < turn[:, None, None], trajectory.turn.actions[episode], -1)
        before = played.reshape(len(episode), -1)
        boards, rows = levels.boards(self._count(levels)), []
        for begin in range(0, len(episode), PLANNED_AT_ONCE):
            between()
            some = slice(begin, begin + PLANNED_AT_ONCE)
            found = plan_after(task.env, task.env_params, boards[episode[some]], budget, before[some])
            for level, taken, cut, plan in zip(episode[some], before[some], turn[some], found):
                if plan is not None and len(plan) and cut * per_turn + len(plan) <= turns * per_turn:
                    actions = np.concatenate([taken[: cut * per_turn], plan])
                    rows.append([int(level), int(cut), actions.tolist()])
            self._note(f"{task.name}: {len(rows)} plans of {min(begin + PLANNED_AT_ONCE, len(episode))} situations")
        return rows

    def _trajectories(
        self, number: int, sets: list[EvalSet], found: Round
    ) -> tuple[Trajectory, Bool[jax.Array, "E T"]]:
        """Plays what was found; situations without a plan are episodes without turns, so that rounds have one shape."""
        rows, tasks, params = [], [], []
        for index, (levels, plans) in enumerate(zip(sets, found.plans)):
            count, task = self._count(levels), levels.batched_env.tasks[levels.task]
            missing = [[0, 0, []]] * (count - len(plans))
            rows += plans + missing
            tasks += [index] * count
            params.append(dataclasses.replace(task.env_params, levels=jnp.asarray(levels.boards(count))))
        level, before, actions = zip(*rows)
        played = [np.array(plan, np.int32) for plan in actions]
        return self._play(
            self._key(number), Plans(played, np.array(before), np.array(tasks), np.array(level), tuple(params))
        )

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.json"

    def _write(self, number: int, found: Round) -> None:
        if hosts.is_writer():
            self._folder.mkdir(exist_ok=True)
            with atomic_write(self._file(number)) as file:
                json.dump(dataclasses.asdict(found), file)

    def _read(self, number: int, sets: list[EvalSet], *, must_exist: bool) -> Round | None:
        def read() -> dict[str, Any] | None:
            file = self._file(number)
            if not file.exists() and not must_exist:
                return None
            try:
                return json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise UserError.at(
                    file, f"cannot be read ({error}); restore the plans of the round, or use a new run"
                ) from error

        stored = hosts.from_writer(read)
        if stored is None:
            return None
        try:
            found = Round(stored["success"], stored["plans"], stored["levels"])
            fits = len(found.success) == len(sets) and found.levels == self._digest(sets)
            fits &= all(self._fit(levels, plans) for levels, plans in zip(sets, found.plans, strict=True))
        except (KeyError, TypeError, ValueError):
            fits = False
        if not fits:
            raise UserError.at(
                self._file(number), "does not hold the plans of a round on these levels; restore it, or use a new run"
            )
        return found

    def _fit(self, levels: EvalSet, plans: list[_Plan]) -> bool:
        """Whether plans from a file are of these levels."""
        count, prompt = self._count(levels), self._parts.config.prompt
        actions = levels.batched_env.tasks[levels.task].env.num_actions
        return len(plans) <= count and all(
            level in range(count)
            and before in range(prompt.max_turns)
            and len(taken) <= prompt.max_turns * prompt.max_actions_per_turn
            and all(action in range(-1, actions) for action in taken)
            for level, before, taken in plans
        )


def sampled_situations(
    trajectory: Trajectory, count: int, rng: np.random.Generator
) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
    """Samples situations before a response, uniformly without replacement: episode and turn of up to `count`.

    `trajectory` has NumPy arrays. Situations after a turn without actions are left out, since no response in the
    canonical format repeats such a turn.
    """
    turns = np.arange(trajectory.turn.actions.shape[1])
    acted = (trajectory.turn.actions >= 0).any(axis=2)
    reached = np.logical_and.accumulate(np.pad(acted, ((0, 0), (1, 0)), constant_values=True), axis=1)[:, :-1]
    episode, turn = np.nonzero(reached & (turns < trajectory.num_turns[:, None]))
    chosen = np.sort(rng.choice(len(episode), size=min(count, len(episode)), replace=False))
    return episode[chosen], turn[chosen]
