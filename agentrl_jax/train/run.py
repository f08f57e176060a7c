"""A run from its configuration to its summary: its stages, see `train.stages`, and the evaluation at its end.

A step of `metrics.jsonl` and of the checkpoints is a row of a stage: first chunks of imitation, then iterations.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from agentrl_jax.config import Config
from agentrl_jax.config.defaults import with_defaults
from agentrl_jax.errors import counted, refusals
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.evaluate.midway import MidwayCount
from agentrl_jax.evaluate.seen import learned_levels
from agentrl_jax.evaluate.summary import machine, no_tables, success_tables, tables_by_category
from agentrl_jax.learner.state import TrainState
from agentrl_jax.offline.stage_data import resolved
from agentrl_jax.parallel import hosts
from agentrl_jax.parallel.mesh import counted_devices
from agentrl_jax.runs.checkpoint import Checkpoints
from agentrl_jax.runs.live import LiveView, final_table
from agentrl_jax.runs.loggers import Logger
from agentrl_jax.runs.run_folder import CONFIG, RunFolder, read_config
from agentrl_jax.setup import start
from agentrl_jax.setup.own_rules import copy_own_rules, with_own_rules
from agentrl_jax.setup.parts import RunParts
from agentrl_jax.stopping import closed_at_stop, deferring
from agentrl_jax.terminal import Terminal, literal
from agentrl_jax.train.best import evaluate_best
from agentrl_jax.train.iteration import Played
from agentrl_jax.train.progress import RunProgress
from agentrl_jax.train.roll_back import is_kept_for_good, kept_checkpoints
from agentrl_jax.train.stages import Stage, stages_of
from envs_jax.budget import EXACT, optimal_label


def train(
    config: Config,
    console: Console | None = None,
    *,
    accept_changes: bool = False,
    rules_changed: bool = False,
    loggers: Sequence[Logger] = (),
) -> dict[str, Any]:
    """Trains an agent, or resumes a run that was stopped, and returns its summary.

    The same configuration gives the same metrics and parameters bit for bit on the same hardware, however often the
    process was killed. Only entries named time/, seconds or programs differ; programs are those of the last process.
    The summary is the content of summary.json. With `accept_changes` a run goes on with other learning rates and other
    numbers of its rule, from its last checkpoint on, see `runs.config_history`; with `rules_changed` with other code of
    the user's rules. `loggers` get every row of metrics.jsonl, besides those that `train.loggers` names, see
    `runs.loggers.Logger`.

    On several hosts it is called in every process, after `hosts.start`, and process 0 alone writes and prints.

    Raises:
        UserError: the run folder holds something else, a part of the configuration is unusable, too many updates in
            a row were skipped, too many episodes failed, or the log-probabilities of learner and rollout differ.
        Stopped: a process of the run got SIGTERM, SIGHUP or a first interrupt; the state has been saved.
    """
    console = (console or Terminal()) if hosts.is_writer() else Terminal(quiet=True)
    with refusals():
        config = with_defaults(with_own_rules(config)).replace(devices=counted_devices(config.devices))
        run = Run(config)  # first, so that no folder is created with an unusable configuration
        config = run.config
    with (
        RunFolder(config, accept_changes=accept_changes, rules_changed=rules_changed, loggers=loggers) as folder,
        Checkpoints(
            folder.checkpoints,
            keep=kept_checkpoints(config.train),
            for_good=functools.partial(is_kept_for_good, config),
        ) as checkpoints,
        LiveView(config.train.iterations, title=os.path.basename(folder.place), console=console) as view,
        closed_at_stop(lambda: view.__exit__()),
        closed_at_stop(run.close),
        deferring() as asked_to_stop,
    ):
        run.asked_to_stop = asked_to_stop
        try:
            summary = run.train(folder, checkpoints, view)
        finally:
            run.close()
    console.print(final_table(summary))
    console.print(literal(f"run folder: {folder.place}"), soft_wrap=True)
    return summary


class Run:
    """A run: its parts, its stages in their order, and the evaluation at its end."""

    folder: RunFolder
    view: LiveView
    progress: RunProgress
    stages: Sequence[Stage]
    asked_to_stop: Callable[[], int] = staticmethod(lambda: 0)

    def __init__(self, config: Config):
        self.parts = parts = RunParts(config, lambda: self.folder.path)
        self.held_out = HeldOut.of_no_tasks(config)
        if config.tasks:
            played = parts.eval_env, parts.eval_splits, parts.evaluation, parts.programs.replicas
            self.held_out = HeldOut.of_run(config, *played)
        going_on = config.data_stages and (Path(config.run_dir) / CONFIG).exists()
        stored = read_config(config.run_dir) if going_on else None
        self.config, self._read = resolved(
            config, stored, parts.tokenizer, lambda: self.held_out.contents(parts.tokenizer)
        )
        parts.config = self.config

    def train(self, folder: RunFolder, checkpoints: Checkpoints, view: LiveView) -> dict[str, Any]:
        """Runs all stages and returns the summary, see `train`; of a run that has ended, the one that is stored."""
        for line in hosts.from_writer(checkpoints.rename_damaged):  # the run has not ended without its last one
            view.note(line)
        if (summary := folder.summary()) is not None:
            view.note("the run has ended, and this is its summary; `agentrl eval` plays again")
            return summary
        return self._finish(self._walk(self._restore(folder, checkpoints, view)))

    def play(self, folder: RunFolder, checkpoints: Checkpoints, view: LiveView, row: int) -> Played:
        """The rollout of a row of metrics.jsonl, after what is between the last checkpoint and it."""
        state = self._walk(self._restore(folder, checkpoints, view), row - 1)
        return self.stages[int(state.stage) - 1].play(state)

    def rebuild(self, folder: RunFolder, checkpoints: Checkpoints, view: LiveView, row: int) -> None:
        """Saves the state after a row, after learning again what is between the last checkpoint and it."""
        self._save(row, self._walk(self._restore(folder, checkpoints, view), row))

    def _save(self, row: int, state: TrainState) -> None:
        """Saves the state after a row, if it has not been saved yet, and waits until it is stored."""
        checkpoints = self.progress.checkpoints
        checkpoints.wait()
        if row not in hosts.from_writer(checkpoints.steps):
            self.progress.save(row, state)
            checkpoints.wait()

    def _restore(self, folder: RunFolder, checkpoints: Checkpoints, view: LiveView) -> TrainState:
        """The state of the newest checkpoint, or that before the first stage."""
        self.folder, self.view, self.parts.programs.note = folder, view, view.note
        hosts.from_writer(lambda: self.parts.store_traits(folder.path))
        hosts.from_writer(lambda: copy_own_rules(folder.path, self.config))
        if self.parts.services is not None:
            self.parts.services.log_to(folder.path)
        for line in hosts.from_writer(checkpoints.rename_damaged):
            view.note(line)
        if self.config.train.iterations:
            for line in start.notes(self.config):
                view.note(line)
        midway = MidwayCount(self.held_out.board_hashes, self.held_out.labels)
        self.progress = RunProgress(self.parts, folder, checkpoints, view, midway, self.asked_to_stop)
        self.stages = stages_of(self.progress, self.held_out, self._read)
        self.progress.stages = self.stages
        return self.progress.restore()

    def _walk(self, state: TrainState, row: int | None = None) -> TrainState:
        """Goes on to a row of metrics.jsonl, at which its stage has begun; without one, to the end of all stages.

        On the way to a row nothing is repeated: rows after a collapse are those of the run that went back.
        """
        for number, stage in enumerate(self.stages, 1):
            if int(state.stage) > number:
                continue
            if int(state.stage) == number:
                stage.resume(state)
            else:
                state = stage.begin(state)
            if row is None:
                state = stage.recovered(state)
            while not stage.ended(state) and (row is None or stage.row(state) < row):
                state = stage.advance(state)
                if row is None:
                    state = stage.recovered(state)
                self.progress.stop_if_asked(stage.row(state), state)
            if row is not None and row < stage.first_row + stage.rows:
                break
        return state

    def _finish(self, state: TrainState) -> dict[str, Any]:
        """Evaluates the policy, and writes the summary and the curves."""
        progress, held_out, services = self.progress, self.held_out, self.parts.services
        if not self.config.tasks:
            return self._finish_without_tasks(state)
        self.view.note(f"evaluating on {counted(sum(held_out.levels), 'level')}")
        final = self.stages[-1]
        last = final.row(state)
        evaluated = held_out.outcomes(state.merged_params(state.evaluated), lambda: progress.stop_if_asked(last, state))
        learned = learned_levels(self.folder.levels(), self.folder.metrics(), last)
        midway = progress.midway.counts()
        seen = {
            label: known | midway.get(label, {}) for label, known in held_out.seen(learned, evaluated.levels).items()
        }
        categories = None if services is None else services.categories(held_out.levels)
        outcomes = progress.imitation_outcomes, evaluated.success, held_out.baselines()
        before = [stage.name for stage in self.stages[:-1]]
        for index, count in ({} if services is None else services.seen_items(held_out.levels)).items():
            seen[held_out.labels[index]]["seen_items"] = count
        summary = {
            **success_tables(*outcomes, before=before),
            "mean_turns": evaluated.mean_turns,
            "mean_tokens": evaluated.mean_tokens,
            "by_category": {} if categories is None else tables_by_category(categories, *outcomes, before=before),
            "held_out": all(task["held_out"] is True for task in seen.values()),
            "seen_levels": None if learned is None else sum(task["seen_levels"] for task in seen.values()),
            "seen_midway": sum(task["seen_midway"] for task in midway.values()) if midway else None,
            "levels": seen,
            "iterations": last - final.first_row,
            **self._counted(state),
        }
        if self.config.train.best.evaluate:
            summary["best"] = evaluate_best(progress, held_out, state, evaluated, last - final.first_row)
        self.folder.keep_earlier_end(summary["iterations"])
        progress.plot(
            **{name: summary["success"].get(name, {}).get("mean") for name in ("random", "optimal")},
            optimal_name=optimal_label(summary.get("optimal_is", EXACT)),
        )
        self.folder.write_summary(summary)
        return summary

    def _finish_without_tasks(self, state: TrainState) -> dict[str, Any]:
        """Saves the policy, which nothing is played with, and writes the summary."""
        self._save(self.stages[-1].row(state), state)
        summary = {
            **no_tables(before=[stage.name for stage in self.stages]),
            "iterations": 0,
            **self._counted(state),
        }
        self.folder.write_summary(summary)
        return summary

    def _counted(self, state: TrainState) -> dict[str, Any]:
        """The entries of the summary that count what was done, and on which machine."""
        progress, programs = self.progress, self.parts.programs
        return {
            "stopped_by": progress.monitor.stopped_by or progress.target.reached,
            "roll_backs": progress.roll_backs.summary(),
            "gradient_steps": int(state.gradient_steps),
            **{k: v for k, v in dataclasses.asdict(progress.totals).items() if k != "seconds"},
            "programs_compiled": programs.count(),
            "programs": sorted(programs.compiled),
            "seconds": {"total": progress.seconds()},
            "devices": programs.mesh.size,
            "started_from": next((row["start"] for row in self.folder.processes() if "start" in row), None),
            **machine(),
        }

    def close(self) -> None:
        """Closes the services."""
        if self.parts.services is not None:
            self.parts.services.close()
