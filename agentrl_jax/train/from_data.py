"""The stages of a run that learn from data: cross-entropy on the replies of conversations, and preference pairs."""

import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from agentrl_jax.config.imitation import IMITATION_CHUNK
from agentrl_jax.config.stages import DataStage, DpoStage
from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.learner.state import TrainState
from agentrl_jax.offline import stage_data
from agentrl_jax.offline.order import Order
from agentrl_jax.offline.rows import TokenRows, examples
from agentrl_jax.offline.stage_data import StageData
from agentrl_jax.parallel import hosts
from agentrl_jax.setup import run_keys
from agentrl_jax.setup.programs import host_metrics
from agentrl_jax.stopping import ending_at_once
from agentrl_jax.train import guards
from agentrl_jax.train.iteration import Played
from agentrl_jax.train.progress import RunProgress


class FromData:
    """See `train.stages.Stage`. A step is a gradient step; a row has up to `IMITATION_CHUNK` of them, one dispatch.

    Where pairs are learned from, the state of the stage has the log-probabilities of all answers under the policy at
    its start, the reference.
    """

    def __init__(
        self, progress: RunProgress, held_out: HeldOut, index: int, first_row: int, read: dict[int, StageData]
    ):
        """Stage `index` of the configuration; its data are taken out of `read`, if they are there."""
        self.progress, self.parts, self.index = progress, progress.parts, index
        config = progress.parts.config.stages[index]
        assert isinstance(config, DataStage)
        self.config, self.name = config, str(config.kind)
        self.first_row, self.rows = first_row, config.chunks
        self._held_out, self._read = held_out, read
        self._pairs = config if isinstance(config, DpoStage) else None
        self._used: tuple[StageData, Order, Any] | None = None
        self.key = jax.random.fold_in(jax.random.fold_in(self.parts.key, run_keys.EXPLORE), index)
        """Of what the stage samples besides its data."""

    @property
    def _data(self) -> StageData:
        return self._known()[0]

    @property
    def _order(self) -> Order:
        return self._known()[1]

    def _known(self) -> tuple[StageData, Order, Any]:
        """The data, which are read where they are needed first, their order, and the program of their steps."""
        if self._used is None:
            self.use(self.read())
        assert self._used is not None
        return self._used

    def use(self, data: StageData) -> None:
        """Learns from these data from now on.

        Raises:
            UserError: a row is longer than the positions that the pretrained model was trained on.
        """
        pretrained, longest = self.parts.pretrained, int(data.rows.lengths.max())
        if pretrained is not None and longest > pretrained.config.max_positions:
            why = (
                f"and a row has {longest} tokens, but the pretrained model {pretrained.config.max_positions} positions"
            )
            raise UserError.of(f"stages.{self.index}.max_tokens", self.config.max_tokens, f"{why}; lower it")
        order, parts = data.order(self.config, self.parts.config.seed), self.parts
        program = parts.programs.data_steps(parts.model, parts.tx, batch=order.batch, pairs=self._pairs)
        self._used = data, order, program

    def read(self) -> StageData:
        """The data of the configuration, which only a process reads that learns from them.

        Raises:
            UserError: they cannot be read, or have changed.
        """
        found = self._read.pop(self.index, None)
        if found is None:
            panel = self._held_out.contents(self.parts.tokenizer)
            found = stage_data.load(self.parts.config, self.index, self.parts.tokenizer, panel)
        return found

    def begin(self, state: TrainState) -> TrainState:
        """The state with a new optimizer, and of pairs the reference."""
        with ending_at_once():
            data, rows = self._data, len(self._data.rows)
        left_out = "".join(f", {number} {reason}" for reason, number in data.counts.items())
        learned = f"{len(data.units)} pairs" if self._pairs else f"{rows} rows of {len(data.contents)} conversations"
        self.progress.view.note(f"{self.name}: {learned}, {int(data.rows.counts.sum())} tokens to learn{left_out}")
        known = self._held_out.has_contents or not self.config.data
        self.progress.folder.log_levels_once(self.first_row, self.name, data.contents, known=known)
        state = self.progress.begun(state)
        if self._pairs:
            found = self._logprobs(state, data.rows)
            state = state.replace(stage_state=self.progress.placed(jnp.asarray(found)))
        return state

    def resume(self, state: TrainState) -> None:
        """Nothing is to be checked: other data are refused where they are read."""

    def new_stage_state(self) -> Float[jax.Array, " N"] | None:
        """The reference, still empty."""
        return self.progress.placed(jnp.zeros(len(self._data.rows))) if self._pairs else None

    def row(self, state: TrainState) -> int:
        """Number of rows that the run has written."""
        rounds, steps = divmod(int(state.step), self.config.steps)
        return self.first_row + rounds * -(-self.config.steps // IMITATION_CHUNK) - (-steps // IMITATION_CHUNK)

    def ended(self, state: TrainState) -> bool:
        """Whether all gradient steps were taken."""
        return int(state.step) >= self.config.total

    def recovered(self, state: TrainState) -> TrainState:
        """Skipped steps end a run; none is taken again."""
        return state

    def play(self, state: TrainState) -> Played:
        """Refused: conversations are not the policy's episodes."""
        raise UserError.of("step", self.row(state) + 1, f"which is a chunk of {self.name}; expected an iteration")

    def advance(self, state: TrainState) -> TrainState:
        """Takes the gradient steps of a chunk.

        Raises:
            UserError: the data have changed, or too many steps in a row were skipped.
        """
        return self.learn(state, {})

    def learn(self, state: TrainState, measured: Mapping[str, float | None]) -> TrainState:
        """Takes the gradient steps of a chunk, and logs what was `measured` before with their metrics."""
        parts, progress, done = self.parts, self.progress, int(state.step) % self.config.steps
        steps, measured = min(IMITATION_CHUNK, self.config.steps - done), dict(measured)
        if not done:
            measured["validation_loss_before"] = self._validation(state)
        began = time.monotonic()
        inputs, tokens = self._inputs(state, done, steps)
        made = time.monotonic()
        program = self._known()[2]
        clip = jnp.float32(parts.config.optim.max_grad_norm)
        reference = state.stage_state  # not sharded as the rest of the state is
        state, found = program(state.replace(stage_state=None), *inputs, jnp.int32(steps), clip)
        state = state.replace(stage_state=reference)
        metrics = host_metrics(found)
        seconds = {"time/data": made - began, "time/step": time.monotonic() - began}
        if done + steps == self.config.steps:
            measured["validation_loss"] = self._validation(state)
        metrics |= {name: value for name, value in measured.items() if value is not None} | {"tokens": tokens}
        step = self.row(state)
        progress.totals.skipped_updates += int(metrics["skipped"])
        named = {f"{self.name}/{name}": value for name, value in metrics.items()}
        progress.folder.log({"step": step, "stage": self.name, **named, **seconds})
        shown = f"  accuracy {metrics['accuracy']:.1%}" if self._pairs else ""
        shown += f"  success {measured['success']:.1%}" if "success" in measured else ""
        shown = f"epoch {self._order.epoch(done + steps):.2f}  loss {metrics['loss']:.3f}{shown}"
        progress.view.note(f"{self.name} {int(state.step):>5}/{self.config.total}  {shown}")
        self._warn(metrics)
        skipped = int(metrics["skipped_in_a_row"])
        lr = f"stages.{self.index}.lr"
        guards.check_skipped(skipped, parts.config.train.max_bad_updates, lr, progress.kept)
        if step % parts.config.train.checkpoint_every == 0 and not self.ended(state) and not int(state.bad_updates):
            progress.save(step, state)
        return state

    def _inputs(self, state: TrainState, done: int, steps: int) -> tuple[tuple[Any, ...], int]:
        """Rows, weights and rates of a dispatch, which always has as many steps, and its trained tokens."""
        data, order, padding = self._data, self._order, IMITATION_CHUNK - steps
        numbers = [order.at(number) for number in range(done, done + steps)]
        found = data.batches([*numbers, *[np.zeros(0, np.int64)] * padding], order.batch)
        counts = found.mask.reshape(IMITATION_CHUNK, -1).sum(axis=1)
        weights = counts
        if self._pairs:
            weights = np.array([len(of_step) for of_step in numbers] + [0] * padding)
            reference = np.zeros((IMITATION_CHUNK, order.batch, 2), np.float32)
            known = hosts.fetch(state.stage_state).reshape(-1, 2)
            for place, of_step in zip(reference, numbers):
                place[: len(of_step)] = known[of_step]
            found = found.replace(reference=reference.reshape(-1))
        rates = [self.config.rate(done + number) for number in range(steps)] + [0.0] * padding
        rows = self.parts.programs.shard_rows(found)
        return (rows, jnp.asarray(weights, jnp.float32), jnp.asarray(rates, jnp.float32)), int(counts.sum())

    def _logprobs(self, state: TrainState, rows: TokenRows) -> Float[np.ndarray, " N"]:
        """The log-probability of the trained tokens of each row."""
        programs, data = self.parts.programs, self._data
        chunk = -(-2 * self._order.batch // programs.replicas) * programs.replicas
        program, params, found = programs.row_logprobs(self.parts.model), state.merged_params(), []
        for first in range(0, len(rows), chunk):
            bins = [[row] if row < len(rows) else [] for row in range(first, first + chunk)]
            found.append(hosts.fetch(program(params, examples(rows, bins, data.size, data.width, packed=False))))
        return np.concatenate(found)[: len(rows)]

    def _validation(self, state: TrainState) -> float | None:
        """Mean cross-entropy of all replies that are kept for validation; None without any, and for pairs."""
        rows = self._data.measured
        if not len(rows) or self._pairs:
            return None
        return float(-self._logprobs(state, rows).sum() / rows.counts.sum())

    def _warn(self, metrics: dict[str, Any]) -> None:
        """Says where chosen answers become less likely, while the margin grows."""
        if self._pairs is None:
            return
        known = float(metrics.get("chosen_gain", 0.0))
        if known < 0:
            self.progress.view.note(
                f"alarm: the chosen answers are less likely than at the start (by {-known:.2f} nats); use a lower "
                f"stages.{self.index}.lr, a higher beta, or nll_coef"
            )
