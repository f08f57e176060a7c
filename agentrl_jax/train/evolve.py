"""The stage of AgentEvol (Xi et al. 2024, arXiv 2406.04151, algorithm 1): rounds of exploration and of learning.

A round explores: the policy plays training levels, several times each. It then learns: from the episodes that succeeded
in this round, together with the base data, beginning again with the policy from before the stage. With rewards of 0 and
1 that is the M-step of reward-weighted regression. Round 0 learns from the base data alone.

The rows of round N are kept in the run folder, see `explored`, because a run that is resumed later has no longer the
policy of the round.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from agentrl_jax.config.stages import EvolveStage
from agentrl_jax.errors import UserError, counted, refusals
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.learner.state import TrainState, init_optimizer
from agentrl_jax.offline.rows import Row, TokenRows
from agentrl_jax.offline.stage_data import StageData
from agentrl_jax.rollout.packing import Sequences
from agentrl_jax.rollout.trajectory import Trajectory, level_ids
from agentrl_jax.setup import build_model, start
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.stopping import ending_at_once
from agentrl_jax.train.explored import Explored, ExploredFiles, training_levels
from agentrl_jax.train.from_data import FromData
from agentrl_jax.train.progress import RunProgress


class Evolve(FromData):
    """See `train.stages.Stage`, and `FromData` for steps and rows. Its state is the policy from before the stage."""

    def __init__(
        self, progress: RunProgress, held_out: HeldOut, index: int, first_row: int, read: dict[int, StageData]
    ):
        """Stage `index` of the configuration."""
        super().__init__(progress, held_out, index, first_row, read)
        assert isinstance(self.config, EvolveStage)
        self.evolve = self.config
        self._files = ExploredFiles(progress.folder.path, index)
        self._base: StageData | None = None
        """The base data, which every round has."""
        self._round = -1
        """The round whose data are loaded."""

    def begin(self, state: TrainState) -> TrainState:
        """The state with a new optimizer and a copy of its policy."""
        state = self.progress.begun(state)
        if not self.evolve.restart:
            return state
        return state.replace(stage_state=jax.tree.map(jnp.copy, state.params["policy"]))

    def new_stage_state(self) -> Any:
        """Shapes of the policy from before the stage; nothing where rounds go on with the policy that they have."""
        if not self.evolve.restart:
            return None
        initial = build_model.initial_state(self.parts.config, self.parts.model, self.parts.pretrained)
        shapes = jax.eval_shape(initial, self.parts.key)
        places = self.progress.placement(shapes)
        return jax.tree.map(
            lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
            *(each.params["policy"] for each in (shapes, places)),
        )

    def advance(self, state: TrainState) -> TrainState:
        """Takes the gradient steps of a chunk, after the exploration of a round that begins with it.

        Raises:
            UserError: the rows of the round are gone, or there is nothing to learn from.
        """
        number = int(state.step) // self.evolve.steps
        measured: dict[str, float] = {}
        if number != self._round:
            state, measured = self._begin_round(state, number)
        return self.learn(state, measured)

    def _begin_round(self, state: TrainState, number: int) -> tuple[TrainState, dict[str, float]]:
        """The state with which a round learns, and what its exploration has measured, where it explores now."""
        row, begins = self.row(state), int(state.step) == number * self.evolve.steps
        if self._base is None:
            with ending_at_once():
                self._base = self._base_data()
        if not number:
            self._use(self._base, number)
            return state, {}
        found = self._files.read(number, must_exist=not begins)
        if found is None:
            asked = functools.partial(self.progress.stop_if_asked, row, state)
            found = self._explore(number, state.merged_params(), asked)
            self._files.write(number, found)
        data = dataclasses.replace(self._base, rows=self._base.rows + found.rows, counts=Counter())
        self._use(data.regrouped(), number)
        if not begins:
            return state, {}
        self.progress.folder.log_levels(row + 1, self.name, found.levels)
        self.progress.view.note(
            f"round {number} of {self.evolve.rounds}: {found.success:.1%} of the episodes succeed, "
            f"{counted(len(found.rows), 'row')} of them are learned from"
        )
        return self._restarted(state), {"success": found.success, "rows": float(len(data.rows))}

    def _use(self, data: StageData, number: int) -> None:
        self.use(data)
        self._round = number

    def _restarted(self, state: TrainState) -> TrainState:
        """The state with a new optimizer and, if rounds restart, with the policy from before the stage."""
        tx, policy, before = self.parts.tx, state.stage_state, self.evolve.restart

        def restart(state, policy):
            params = {**state.params, "policy": policy} if before else state.params
            return state.replace(params=params, opt_state=init_optimizer(tx, params))

        bare = state.replace(stage_state=None)
        placement = self.progress.placement(jax.eval_shape(restart, bare, policy))
        made_of = ("restarted", tx, before, jax.tree.flatten(placement))
        return jit_once(restart, made_of, out_shardings=placement)(bare, policy).replace(stage_state=policy)

    def _base_data(self) -> StageData:
        """The data of the stage and the demonstrations of `imitation`.

        Raises:
            UserError: there are none.
        """
        parts, config = self.parts, self.parts.config
        rows, contents = TokenRows.of([]), list[str]()
        if config.imitation.levels:
            with refusals():
                found, played = start.demonstration_rows(
                    *(config, parts.train_env, parts.train_splits, parts.tokenizer, parts.services, parts.key),
                    report=self.progress.view.note,
                )
            rows, contents = token_rows(found), level_ids(played)
            self.progress.midway.add(played)
        data = StageData(rows, [], TokenRows.of([]), contents, Counter(), "", parts.config.algo.packing)
        if self.config.data:
            read = self.read()
            data = dataclasses.replace(read, rows=rows + read.rows, contents=contents + read.contents)
        if not len(data.rows):
            why = "which nothing replaces: without data, a stage evolve needs imitation.levels"
            raise UserError.of(f"stages.{self.index}.data", [], why)
        known = self._held_out.has_contents or not self.config.data
        self.progress.folder.log_levels_once(self.first_row, self.name, data.contents, known=known)
        self.progress.view.note(f"{self.name}: {counted(len(data.rows), 'row')} of base data")
        return data.regrouped()

    def _explore(self, number: int, params: Any, between: Callable[[], None]) -> Explored:
        """Plays the levels of a round; the first successes of each level are kept."""
        config, evolve = self.parts.config, self.evolve
        key = jax.random.fold_in(self.key, number if evolve.new_levels else 1)
        rows, levels, success = TokenRows.of([]), list[str](), list[float]()
        for chosen in training_levels(self._held_out, key):
            count = chosen.number(evolve.levels)
            played = [
                chosen.play(params, count, evolve.temperature, sample, between=between)
                for sample in range(evolve.samples)
            ]
            success += [float(np.mean(trajectory.success)) for trajectory in played]
            for trajectory, kept in zip(played, first_successes(played, evolve.per_level)):
                found, ids = successes(config, trajectory, kept)
                rows, levels = rows + found, levels + ids
                self.progress.midway.add(trajectory)
        return Explored(rows, levels, float(np.mean(success)))


def token_rows(rows: Sequences) -> TokenRows:
    """The rows that have something to train, without their padding."""
    tokens, length, position, mask = jax.device_get((rows.tokens, rows.length, rows.position, rows.response_mask))
    found = []
    for row in np.flatnonzero(mask.any(axis=1)):
        trained = np.zeros(length[row], bool)
        trained[position[row][mask[row]]] = True
        found.append(Row(tokens[row, : length[row]].tolist(), trained.tolist()))
    return TokenRows.of(found)


def first_successes(played: Sequence[Trajectory], per_level: int) -> Bool[np.ndarray, "K n"]:
    """The episodes that are kept: of each level the first successful ones, at most so many."""
    success: Int[np.ndarray, "K n"] = np.stack([trajectory.success for trajectory in played]).astype(int)
    return (success > 0) & (np.cumsum(success, axis=0) <= per_level)


def successes(config: Any, trajectory: Trajectory, kept: Bool[np.ndarray, " n"]) -> tuple[TokenRows, list[str]]:
    """The rows of some episodes, all of whose turns are learned from, and the ids of their levels."""
    if not kept.any():
        return TokenRows.of([]), []
    chosen = jax.tree.map(lambda x: jnp.asarray(x[np.flatnonzero(kept)]), trajectory)
    rows = start.imitated_rows(config, chosen, jnp.ones(chosen.observation_length.shape, bool))
    return token_rows(rows), level_ids(chosen)
