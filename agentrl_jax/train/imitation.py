"""The imitation stage of a run: cross-entropy on demonstrations, chunk by chunk, with checkpoints."""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp

from agentrl_jax.config.imitation import IMITATION_CHUNK
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.learner.state import TrainState
from agentrl_jax.learner.supervised import Examples, prepare_examples
from agentrl_jax.rollout.packing import Sequences
from agentrl_jax.rollout.trajectory import level_ids
from agentrl_jax.setup import run_keys, start
from agentrl_jax.setup.parts import RunParts
from agentrl_jax.setup.programs import host_metrics
from agentrl_jax.stopping import ending_at_once
from agentrl_jax.train import guards
from agentrl_jax.train.dagger import Dagger
from agentrl_jax.train.iteration import Played
from agentrl_jax.train.progress import RunProgress


class Imitation:
    """See `train.stages.Stage`. A step is a gradient step; a row has up to `IMITATION_CHUNK` of them, one dispatch."""

    name = "imitation"

    def __init__(self, progress: RunProgress, held_out: HeldOut, first_row: int):
        self.progress, self.parts = progress, progress.parts
        self.config = progress.parts.config.imitation
        self.first_row, self.rows = first_row, self.config.chunks
        self._dagger = Dagger(self.parts, held_out, progress.folder.path, progress.view.note)
        self._rounds = 0
        """Rounds of DAgger that this process has played or read."""
        self._rows: Sequences | None = None
        """The demonstrations, those of the rounds included; None until they are needed."""
        self._program: tuple[Any, Examples, jax.Array] | None = None
        """See `_prepare`; None where there are new rows."""

    def begin(self, state: TrainState) -> TrainState:
        """The state with a new optimizer; the demonstrations are made in every process."""
        return self.progress.begun(state)

    def resume(self, state: TrainState) -> None:
        """Nothing is to be checked."""

    def new_stage_state(self) -> None:
        """Everything is in the step."""

    def row(self, state: TrainState) -> int:
        """Number of rows that the run has written."""
        return self.first_row - (-int(state.step) // IMITATION_CHUNK)

    def ended(self, state: TrainState) -> bool:
        """Whether all gradient steps were taken."""
        return int(state.step) >= self.config.steps

    def recovered(self, state: TrainState) -> TrainState:
        """Skipped steps end a run; none is taken again."""
        return state

    def play(self, state: TrainState) -> Played:
        """Refused: demonstrations are not the policy's episodes."""
        raise UserError.of("step", self.row(state) + 1, "which is a chunk of imitation; expected an iteration")

    def advance(self, state: TrainState) -> TrainState:
        """Takes the gradient steps of a chunk, after the rounds of DAgger that come before it.

        Raises:
            UserError: there are no demonstrations, those of an earlier round are gone, or too many steps in a row were
                skipped.
        """
        config, progress, parts = self.config, self.progress, self.parts
        done, row = int(state.step), self.row(state)
        if self._rows is None:
            progress.stop_if_asked(row, state)  # the search for plans takes long
            with ending_at_once():
                self._rows = _demonstrations(done, parts, progress)
        of_round = self._play_rounds(state, row)
        if self._program is None:
            self._program = _prepare(self._rows, parts, progress)
        program, found, counts = self._program
        began = time.monotonic()
        steps, key = min(IMITATION_CHUNK, config.steps - done), jax.random.fold_in(parts.key, run_keys.IMITATION)
        state, metrics = program(state, found, counts, key, jnp.int32(steps), *start.imitation_rates(parts.config))
        metrics = host_metrics(metrics) | of_round
        step = row + 1
        progress.totals.skipped_updates += int(metrics["imitation/skipped"])
        progress.folder.log({"step": step, "stage": self.name, **metrics, "time/step": time.monotonic() - began})
        progress.view.note(f"imitation {int(state.step):>5}/{config.steps}  loss {metrics['imitation/loss']:.3f}")
        skipped = int(metrics["imitation/skipped_in_a_row"])
        guards.check_skipped(skipped, parts.config.train.max_bad_updates, "imitation.lr", progress.kept)
        if step % parts.config.train.checkpoint_every == 0 and not self.ended(state) and not int(state.bad_updates):
            progress.save(step, state)
        if self.ended(state):
            self._rows = self._program = None  # their memory is needed later
        return state

    def _play_rounds(self, state: TrainState, row: int) -> dict[str, float]:
        """Adds the rows of the rounds of DAgger before a chunk; returns the metrics of one that was due now."""
        of_round: dict[str, float] = {}
        chunk = row - self.first_row
        while self._rounds < self._dagger.due(chunk):
            self._rounds += 1
            asked = functools.partial(self.progress.stop_if_asked, row, state)
            more, played, measured = self._dagger.demonstrations(self._rounds, chunk, state.merged_params(), asked)
            self.progress.midway.add(played)
            assert self._rows is not None
            wider = self._rows.tokens.shape[1] - more.tokens.shape[1]  # by the plans in prompts
            more = more.replace(tokens=jnp.pad(more.tokens, ((0, 0), (0, wider))))
            self._rows, self._program = jax.tree.map(lambda *x: jnp.concatenate(x), self._rows, more), None
            if self._dagger.first_chunk(self._rounds) == chunk:  # not of a round before the checkpoint of a resumed run
                self.progress.folder.log_levels(row + 1, self.name, level_ids(played))
                of_round = measured
                self.progress.stop_if_asked(row, state)  # a round takes minutes, and its file is kept
        return of_round


def _demonstrations(done: int, parts: RunParts, progress: RunProgress) -> Sequences:
    """Returns the rows of the demonstrations from before the first step."""
    config, view = parts.config.imitation, progress.view
    with refusals():
        rows, played = start.demonstration_rows(
            *(parts.config, parts.train_env, parts.train_splits, parts.tokenizer, parts.services, parts.key),
            report=view.note,
        )
    levels = level_ids(played)
    progress.midway.add(played)
    view.note(f"{len(levels)} demonstrations, {config.plans} plans on {len(set(levels))} different levels")
    if not done:
        progress.folder.log_levels_once(0, "imitation", levels)
    return rows


def _prepare(rows: Sequences, parts: RunParts, progress: RunProgress) -> tuple[Any, Examples, jax.Array]:
    """Returns the program of the gradient steps, and the demonstrations, sharded by row, with their token counts."""
    config = parts.config.imitation
    packing = parts.config.algo.packing
    with refusals():
        found, batch = prepare_examples(rows, config.batch, packing=packing)
    if packing:
        size = found.tokens.shape[1]
        progress.view.note(f"{batch} bins of {size} tokens a step, about {config.batch} plans or turns")
    model = start.imitating_model(parts.config, parts.model, parts.train_env)
    program = parts.programs.imitation(model, parts.tx, batch=batch)
    return program, parts.programs.shard_rows(found), found.counts()
