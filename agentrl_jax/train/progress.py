"""The progress of a run besides its training state: what checkpoints store, and how a run resumes from one."""

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from agentrl_jax.algos import collapse
from agentrl_jax.evaluate.midway import MidwayCount
from agentrl_jax.evaluate.seen import learned_from
from agentrl_jax.learner.state import TrainState, init_optimizer
from agentrl_jax.parallel import hosts
from agentrl_jax.runs.checkpoint import CheckpointError, Checkpoints
from agentrl_jax.runs.checkpoint_leaves import abstract
from agentrl_jax.runs.config_history import edited_keys, to_record
from agentrl_jax.runs.live import LiveView
from agentrl_jax.runs.run_folder import RunFolder
from agentrl_jax.runs.totals import Totals
from agentrl_jax.setup import build_model, run_keys
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.setup.parts import RunParts
from agentrl_jax.stopping import Stopped
from agentrl_jax.train.collapse_monitor import CollapseMonitor, learning
from agentrl_jax.train.horizon import Horizon
from agentrl_jax.train.roll_back import RollBacks
from agentrl_jax.train.start_policy import start_from
from agentrl_jax.train.target import Target

if TYPE_CHECKING:
    from agentrl_jax.train.stages import Stage


class RunProgress:
    """Folder, checkpoints and everything else about a run that changes while it runs.

    `imitation_outcomes` is success on the held-out levels before learning; empty until it has been measured. `midway`
    counts boards that training episodes meet; without any, nothing. `stages` are those of the run, see `stages.Stage`;
    who makes them from this object sets them before `restore`.
    """

    def __init__(
        self,
        parts: RunParts,
        folder: RunFolder,
        checkpoints: Checkpoints,
        view: LiveView,
        midway: MidwayCount,
        asked_to_stop: Callable[[], int] = lambda: 0,
    ):
        """Starts at the beginning of a run; `restore` resumes from a checkpoint.

        `asked_to_stop` returns the number of a signal that this process got, or 0.
        """
        self.parts, self.folder, self.checkpoints, self.view = parts, folder, checkpoints, view
        self.midway, self._asked_to_stop = midway, asked_to_stop
        self.roll_backs = RollBacks(folder.path / "roll_backs")
        self.totals = Totals()
        self.horizon = Horizon(parts.config.algo.horizon, parts.config.prompt.max_turns)
        self.imitation_outcomes: dict[str, list[bool]] = {}
        self.stages: Sequence[Stage] = ()
        self.monitor: CollapseMonitor
        self.target: Target
        self.history = folder.history(parts.config)
        self._started, self._seconds_before = time.monotonic(), 0.0
        self._stage: int | None = None
        """That of the checkpoint that is restored, as its record says; None before format 7."""

    def restore(self, frozen_params: Any = None) -> TrainState:
        """Returns the state of the newest valid checkpoint, or a fresh one; a `CheckpointError` if it is damaged.

        `frozen_params` are those of the state, if they are already loaded; else they are loaded.
        """
        parts, config = self.parts, self.parts.config
        initial = build_model.initial_state(config, parts.model, parts.pretrained, self.placement)
        key = jax.random.fold_in(parts.key, run_keys.INIT)
        step = self.roll_backs.newest_step(self.checkpoints)
        for line in self.folder.truncate(-1 if step is None else step):
            self.view.note(line)
        rows = self.folder.metrics()
        self.monitor = CollapseMonitor(config.train.on_collapse != "go_on", rows, self.view.note)
        self.target = Target(config.train, rows)
        if step is None:
            return self._first(initial(key))
        self._read(step)
        self.folder.log_process(step)
        self.view.note(f"going on from the checkpoint of step {step}")
        if self.midway.since:
            self.view.note(f"evaluation boards met inside episodes are counted after step {self.midway.since} only")
        known = len(self.folder.metrics())
        if known < step:
            self.view.note(f"metrics.jsonl has {known} of the {step} rows before it; the others are lost")
        shapes = jax.eval_shape(initial, key)
        like = jax.tree.map(
            lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes, self.placement(shapes)
        )
        if like.frozen_params is None and parts.pretrained is not None:
            for loaded in jax.tree.leaves(parts.pretrained.params):  # else they stay beside the restored ones
                loaded.delete()
        state = self._restored(step, like)
        if like.frozen_params is None:
            return state
        return state.replace(frozen_params=initial(key).frozen_params if frozen_params is None else frozen_params)

    def _restored(self, step: int, like: TrainState) -> TrainState:
        """The state that is stored with a step, without frozen parameters."""
        if (number := self._stage) is not None:
            kept = self.stages[number - 1].new_stage_state() if number else None
            like = like.replace(stage_state=jax.tree.map(abstract, kept))
            return TrainState(**self.checkpoints.restore(step, _stored(like)))
        # Before format 7, a state counted the steps of imitation and reinforcement learning apart.
        number = len(self.stages) - (not self.imitation_outcomes)
        kept = self.stages[-1].new_stage_state() if self.imitation_outcomes else None
        entries = _stored(like.replace(stage_state=jax.tree.map(abstract, kept)))
        del entries["stage"]
        counter = entries.pop("step")
        levels = {"levels": entries.pop("stage_state")} if kept is not None else {}
        stored = self.checkpoints.restore(step, {**entries, **levels, "iteration": counter, "imitation_step": counter})
        iteration, imitation_step = stored.pop("iteration"), stored.pop("imitation_step")
        done = iteration if number == len(self.stages) else imitation_step
        levels = stored.pop("levels", None)
        return TrainState(**stored, stage=jnp.full_like(done, number), step=done, stage_state=levels)

    def _first(self, state: TrainState) -> TrainState:
        """A fresh state, with the policy of another run if this one starts from it."""
        if not self.parts.config.start.run:
            self.folder.log_process(0)
            return state
        state, source, meta = start_from(self.parts.config, state)
        self.midway.start_from(meta.get("midway"))
        self.view.note(f"starting from the checkpoint of step {source['step']} of {source['run']}")
        hosts.from_writer(lambda: self._log_start(source))
        return state

    def _log_start(self, source: dict[str, Any]) -> None:
        """Records the checkpoint that the run starts from, and what it has learned from, for the writer."""
        learned = learned_from(Path(source["run"]), source["step"], self.view.note)
        self.folder.log_levels(0, "start", sorted(learned or ()), known=learned is not None)
        self.folder.log_process(0, start=source)

    def _read(self, step: int) -> None:
        """Restores the progress that is stored with the checkpoint of a step.

        Raises:
            CheckpointError: the record is not that of a run, or its configuration is not the run's.
        """
        meta = hosts.from_writer(lambda: self.checkpoints.meta(step))
        since = self.roll_backs.records[meta.get("roll_backs", 0) :]
        try:
            self.totals = Totals.stored((since[-1] if since else meta)["totals"])
            self.imitation_outcomes = {how: list(won) for how, won in meta["imitation_outcomes"].items()}
            self.horizon.restore(meta.get("horizon", self.horizon.saved()))
            self.midway.restore(meta.get("midway"), step)
            self._stage = meta.get("stage")
            if self._stage not in (None, *range(len(self.stages) + 1)):
                raise TypeError(f"stage {self._stage!r} of {len(self.stages)}")
            edited = [*edited_keys(meta.get("config"), self.history.at(step))]
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError.at(
                self.checkpoints.path / str(step),
                f"the record of step {step} is not that of a run ({error}); "
                f"restore a copy, or rename the folder to {step}.damaged to go on from an earlier checkpoint",
            ) from error
        if edited:
            key, before, now = edited[0]
            raise CheckpointError.of(
                key,
                now,
                f"but {before} when the checkpoint of step {step} was written: config.yaml of {self.folder.path} was "
                "edited by hand; undo the edit, and give changes on the command line, with --accept_changes",
            )
        if self.roll_backs.count > self.parts.config.train.max_roll_backs:
            self.monitor.stopped_by = self.roll_backs.records[-1]["alarm"]
        self._seconds_before = self.totals.seconds

    def save(self, step: int, state: TrainState, score: float | None = None, *, regular: bool = True) -> None:
        """Saves a state under a step of `metrics.jsonl`, in the background; see `Checkpoints.save`."""
        self.totals.seconds = self.seconds()
        meta = {
            "config": to_record(self.history.at(step)),
            "stage": int(state.stage),
            "totals": dataclasses.asdict(self.totals),
            "imitation_outcomes": self.imitation_outcomes,
            "horizon": self.horizon.saved(),
            "midway": self.midway.saved(),
            "roll_backs": self.roll_backs.count,
        }
        self.folder.upload()
        self.checkpoints.save(step, _stored(state), meta, score=score, regular=regular, wait=False)

    def best_score(self) -> float:
        """The highest score of a saved state, see `Target.score`; minus infinity if none has one.

        Waits for one being written.
        """

        def known() -> float:
            self.checkpoints.wait()
            return self.checkpoints.best_score()

        return hosts.from_writer(known)

    def replace(self, step: int, state: TrainState) -> None:
        """Saves a state in place of one that may have been saved under its step, by a run that was stopped."""

        def delete_old() -> None:
            if step in self.checkpoints.steps():
                self.checkpoints.delete(step)

        hosts.from_writer(delete_old)
        self.save(step, state)

    def stop_if_asked(self, step: int, state: TrainState) -> None:
        """Saves the state and ends the run if a process got a signal; called between two steps.

        Raises:
            Stopped: a process got one.
        """
        self.checkpoints.raise_failure()
        asked = self._asked_to_stop()
        if not hosts.agree(bool(asked)):
            return
        number = signal.Signals(asked or signal.SIGTERM)  # another process may have got it
        self.view.note(f"stopping at {number.name}")
        self.checkpoints.wait()
        known = hosts.from_writer(self.checkpoints.latest_step)
        if known is None or known < step:
            self.save(step, state, regular=False)
        self.checkpoints.wait()
        raise Stopped(number)

    def plot(self, **baselines: Any) -> None:
        """Draws the curves so far."""
        rows = self.folder.metrics()
        if hosts.is_writer():
            file, title = self.folder.path / "curves.png", os.path.basename(self.folder.place)
            from agentrl_jax.runs.curves import plot_curves  # matplotlib takes as long as JAX to import

            plot_curves(rows, file, **baselines, title=title)

    def roll_back(self, state: TrainState, chunks: int) -> TrainState:
        """Returns the state of the last regular checkpoint before the collapse began; the current one if none is.

        `chunks` rows come before reinforcement learning. Which checkpoints are regular does not depend on where the run
        was interrupted.
        """
        rows = learning(self.folder.metrics())
        finding, iteration = self.monitor.finding(rows), int(state.step)
        self.checkpoints.wait()
        regular = hosts.from_writer(self.checkpoints.regular_steps)
        before = [step for step in regular if chunks <= step < chunks + finding.first_bad]
        if collapse.is_solved(rows, finding) or not before:
            why = "there is nothing left to learn" if before else "no checkpoint is older than its beginning"
            self.view.note(f"{finding.alarm.name} ends the run: {why}")
            if chunks + iteration not in hosts.from_writer(self.checkpoints.steps):
                self.save(chunks + iteration, state, rows[-1].get("validation/success"))
            return state
        self.totals.seconds = self.seconds()
        record = {
            "alarm": finding.alarm.name,
            "iteration": iteration,
            "began": finding.began,
            "step": before[-1],
            "totals": dataclasses.asdict(self.totals),
            "rows": [row for row in self.folder.metrics() if row["step"] > before[-1]],
        }
        self.roll_backs.add(record)
        self.view.note(
            f"iteration {iteration}: {finding.alarm.name} since {finding.began}, back to iteration "
            f"{before[-1] - chunks} (roll-back {self.roll_backs.count} of {self.parts.config.train.max_roll_backs})"
        )
        self._started = time.monotonic()
        # Two states need not fit into the memory; the checkpoint has been written.
        kept = {id(leaf) for leaf in jax.tree.leaves(state.frozen_params)}
        for leaf in jax.tree.leaves(state):
            if isinstance(leaf, jax.Array) and id(leaf) not in kept:
                leaf.delete()
        return self.restore(state.frozen_params)

    def begun(self, state: TrainState) -> TrainState:
        """The next stage of a state, which learns supervised: with a new optimizer, as the first stage has anyway."""
        if not int(state.stage):
            return state.next_stage()
        tx = self.parts.tx

        def begin(state):
            return state.replace(opt_state=init_optimizer(tx, state.params)).next_stage()

        placement = self.placement(jax.eval_shape(begin, state))
        made_of = ("begun", tx, jax.tree.flatten(placement))
        return jit_once(begin, made_of, out_shardings=placement, donate_argnums=0)(state)

    def placement(self, shapes: Any) -> Any:
        """The sharding of every leaf of a state."""
        return self.parts.programs.placement(shapes, self.parts.model.decoder)

    def placed(self, replicated: Any) -> Any:
        """Arrays on the devices of the run, the same on each."""
        sharding = self.placement(jax.ShapeDtypeStruct((), jnp.int32))
        return jax.tree.map(lambda x: jax.device_put(x, sharding), replicated)

    def seconds(self) -> float:
        """Wall time of the run so far, over all of its processes."""
        return self._seconds_before + time.monotonic() - self._started

    def kept(self) -> str:
        """Which checkpoint is left to resume from, for messages; waits for one that is being written."""
        with contextlib.suppress(CheckpointError):
            self.checkpoints.wait()
        step = self.checkpoints.latest_step()
        return "there is no checkpoint yet" if step is None else f"the last checkpoint, step {step}, is kept"


def _stored(state: TrainState) -> dict[str, Any]:
    """What a checkpoint holds of a state: without frozen parameters, and without an entry for nothing."""
    entries = vars(state) | {"frozen_params": None}
    optional = ("stage_state", "teacher", "average", "entropy_coef")
    return {name: value for name, value in entries.items() if name not in optional or value is not None}
