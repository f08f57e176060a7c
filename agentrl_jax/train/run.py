"""A run from its configuration to its summary: imitation, reinforcement learning, evaluation, checkpoints.

A step of `metrics.jsonl` and of the checkpoints is first a chunk of imitation, then an iteration.
"""

import dataclasses
import functools
import itertools
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console

from agentrl_jax.algos import mutual_information
from agentrl_jax.config import Config, rates
from agentrl_jax.config.defaults import with_defaults
from agentrl_jax.errors import UserError, counted, refusals
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.evaluate.midway import MidwayCount
from agentrl_jax.evaluate.seen import learned_levels
from agentrl_jax.evaluate.service_report import failure_rows, of_all_hosts, service_metrics
from agentrl_jax.evaluate.summary import machine, success_tables, tables_by_category
from agentrl_jax.learner.state import TrainState
from agentrl_jax.parallel import hosts
from agentrl_jax.parallel.mesh import counted_devices
from agentrl_jax.rollout.trajectory import Trajectory, hexadecimal, level_ids
from agentrl_jax.runs.checkpoint import Checkpoints
from agentrl_jax.runs.live import IterationView, LiveView, final_table
from agentrl_jax.runs.loggers import Logger
from agentrl_jax.runs.run_folder import RunFolder
from agentrl_jax.setup import build, level_pools, run_keys, start
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.setup.parts import RunParts
from agentrl_jax.setup.programs import host_metrics, played_metrics, total_stats
from agentrl_jax.stopping import Stopped, closed_at_stop, deferring
from agentrl_jax.terminal import Terminal, literal
from agentrl_jax.train import guards
from agentrl_jax.train.imitation import imitate
from agentrl_jax.train.iteration import IterationInputs, IterationPrograms, Played, learn, play
from agentrl_jax.train.progress import RunProgress
from agentrl_jax.train.recorder import Recorder
from agentrl_jax.train.roll_back import is_kept_for_good, kept_checkpoints
from envs_jax.budget import EXACT, optimal_label
from envs_jax.splits import Split


def train(
    config: Config, console: Console | None = None, *, accept_changes: bool = False, loggers: Sequence[Logger] = ()
) -> dict[str, Any]:
    """Trains an agent, or resumes a run that was stopped, and returns its summary.

    The same configuration gives the same metrics and parameters bit for bit on the same hardware, however often the
    process was killed. Only entries named time/, seconds or programs differ; programs are those of the last process.
    The summary is the content of summary.json. With `accept_changes` a run goes on with other learning rates and other
    numbers of its rule, from its last checkpoint on, see `runs.config_history`. `loggers` get every row of
    metrics.jsonl, besides those that `train.loggers` names, see `runs.loggers.Logger`.

    On several hosts it is called in every process, after `hosts.start`, and process 0 alone writes and prints.

    Raises:
        UserError: the run folder holds something else, a part of the configuration is unusable, too many updates in
            a row were skipped, too many episodes failed, or the log-probabilities of learner and rollout differ.
        Stopped: a process of the run got SIGTERM, SIGHUP or a first interrupt; the state has been saved.
    """
    console = (console or Terminal()) if hosts.is_writer() else Terminal(quiet=True)
    with refusals():
        config = with_defaults(config).replace(devices=counted_devices(config.devices))
        run = Run(config)  # first, so that no folder is created with an unusable configuration
    with (
        RunFolder(config, accept_changes=accept_changes, loggers=loggers) as folder,
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
    """The stages of a run, in their order: imitation, iterations, evaluation."""

    folder: RunFolder
    view: LiveView
    progress: RunProgress
    asked_to_stop: Callable[[], int] = staticmethod(lambda: 0)
    _plotted = 0
    """The iteration at which the curves were drawn last."""
    _row_ended = 0.0
    """When the row of the iteration before was complete; in the first iteration of a process, when it began."""

    def __init__(self, config: Config):
        self.config = config
        self.parts = parts = RunParts(config, lambda: self.folder.path)
        self.held_out = HeldOut.of_run(
            config, parts.eval_env, parts.eval_splits, parts.evaluation, parts.programs.replicas
        )
        self.programs = IterationPrograms(parts.rollout, parts.update, parts.greedy, config.rollout.group_size)
        self.recorder = Recorder(parts)

    def train(self, folder: RunFolder, checkpoints: Checkpoints, view: LiveView) -> dict[str, Any]:
        """Runs all stages and returns the summary, see `train`; of a run that has ended, the one that is stored."""
        for line in hosts.from_writer(checkpoints.rename_damaged):  # the run has not ended without its last one
            view.note(line)
        if (summary := folder.summary()) is not None:
            view.note("the run has ended, and this is its summary; `agentrl eval` plays again")
            return summary
        state = self._roll_back(self._start(folder, checkpoints, view))
        while int(state.iteration) < self.config.train.iterations and not self.progress.monitor.stopped_by:
            state = self._roll_back(self._iterate(state))
            self._stop_if_asked(self.parts.imitation_chunks + int(state.iteration), state)
        return self._finish(state)

    def _roll_back(self, state: TrainState) -> TrainState:
        """The state of before a collapse; without one, or if the run has gone back often enough, the state itself.

        At the start of a process there may be one, of a run that did not roll back before.
        """
        config, progress = self.config.train, self.progress
        allowed = config.on_collapse == "roll_back" and progress.roll_backs.count <= config.max_roll_backs
        return progress.roll_back(state) if progress.monitor.stopped_by and allowed else state

    def play(self, folder: RunFolder, checkpoints: Checkpoints, view: LiveView, iteration: int) -> Played:
        """The rollout of an iteration, counted from 1, after the iterations between the last checkpoint and it."""
        state = self._learn(self._start(folder, checkpoints, view), iteration - 1)
        return play(state, self._inputs(iteration - 1, state.levels), self.programs)

    def rebuild(self, folder: RunFolder, checkpoints: Checkpoints, view: LiveView, iteration: int) -> None:
        """Saves the state after an iteration, after learning again what is between the last checkpoint and it."""
        state = self._learn(self._start(folder, checkpoints, view), iteration)
        checkpoints.wait()
        if (step := self.parts.imitation_chunks + iteration) not in hosts.from_writer(checkpoints.steps):
            self.progress.save(step, state)
            checkpoints.wait()

    def _learn(self, state: TrainState, iteration: int) -> TrainState:
        while int(state.iteration) < iteration:
            state = self._iterate(state)
        return state

    def _start(self, folder: RunFolder, checkpoints: Checkpoints, view: LiveView) -> TrainState:
        """The state of the newest checkpoint, or that at the start of learning, after imitation."""
        self.folder, self.view, self.parts.programs.note = folder, view, view.note
        hosts.from_writer(lambda: self.parts.store_traits(folder.path))
        if self.parts.services is not None:
            self.parts.services.log_to(folder.path)
        for line in hosts.from_writer(checkpoints.rename_damaged):
            view.note(line)
        if self.config.train.iterations:
            for line in start.notes(self.config):
                view.note(line)
        midway = MidwayCount(self.held_out.board_hashes, self.held_out.labels)
        self.progress = progress = RunProgress(self.parts, folder, checkpoints, view, midway)
        state = progress.restore()
        if self.parts.imitation_chunks and int(state.imitation_step) < self.config.imitation.steps:
            state = imitate(state, self.parts, self.held_out, progress, self._stop_if_asked)
        if not progress.imitation_outcomes:
            return self._begin_learning(state)
        self._check_test_levels()
        return state

    def _check_test_levels(self) -> None:
        """Refuses to go on if the evaluation at the end would not be on the levels of that at the start.

        Raises:
            UserError: an environment has other levels than the version that began the run.
        """
        played = next((row["levels"] for row in reversed(self.folder.levels()) if row["stage"] == "test"), None)
        boards = [found for found in self.held_out.board_hashes if found is not None]
        if played is None or len(boards) < len(self.held_out.labels):
            return
        if set(hexadecimal(np.concatenate(boards))) != set(played):
            raise UserError.at(
                self.folder.path,
                "was evaluated at its start on other levels than those of this version; go on with the version that "
                "began the run, or begin a new one",
            )

    def _stop_if_asked(self, step: int, state: TrainState) -> None:
        """Saves the state and ends the run if a process got a signal; called between two steps."""
        self.progress.checkpoints.raise_failure()
        asked = self.asked_to_stop()
        if not hosts.agree(bool(asked)):
            return
        number = signal.Signals(asked or signal.SIGTERM)  # another process may have got it
        self.view.note(f"stopping at {number.name}")
        self.progress.checkpoints.wait()
        known = hosts.from_writer(self.progress.checkpoints.latest_step)
        if known is None or known < step:
            self.progress.save(step, state, regular=False)
        self.progress.checkpoints.wait()
        raise Stopped(number)

    def _begin_learning(self, state: TrainState) -> TrainState:
        """Runs once between imitation and learning; the checkpoint saved here shows that it has run."""
        self.parts.train_env.take_report()  # earlier episodes belong to no iteration
        self.view.note("evaluating the start")
        step = self.parts.imitation_chunks
        evaluated = self.held_out.outcomes(state.merged_params(), lambda: self._stop_if_asked(step, state))
        self.progress.imitation_outcomes = evaluated.success
        self.folder.log_levels_once(step, "test", [*itertools.chain(*evaluated.levels)])
        tx, reference, going_on = self.parts.tx, build.needs_reference(self.config), self.config.start.optimizer
        begin = functools.partial(start.begin_learning, tx=tx, reference=reference, going_on=going_on)
        placement = self.progress.placement(jax.eval_shape(begin, state))
        made_of = ("begin_learning", tx, reference, going_on, jax.tree.flatten(placement))
        state = jit_once(begin, made_of, out_shardings=placement, donate_argnums=0)(state)
        state = state.replace(levels=self.progress.placed(self.parts.level_pools))
        self.progress.replace(step, state)
        # Rows of iterations without a complete checkpoint before them could not be resumed.
        hosts.from_writer(self.progress.checkpoints.wait)
        return state

    def _iterate(self, state: TrainState) -> TrainState:
        """Runs one iteration: levels and keys, rollout, update; records it, and saves the state if that is due."""
        iteration = int(state.iteration)
        inputs = self._inputs(iteration, state.levels)
        began = time.monotonic()
        self._row_ended = self._row_ended or began
        played = play(state, inputs, self.programs)
        jax.block_until_ready(played.trajectory)
        rolled = time.monotonic()
        self.progress.midway.add(played.trajectory)
        services = self._service_metrics(iteration, played.trajectory, rolled - began)
        prompts = self._prompt_metrics(state, played.trajectory, inputs.rollout.temperature)
        looked = time.monotonic()
        taken = self.recorder.take(state, played.trajectory, inputs) if self.recorder.due(iteration) else None
        scored = time.monotonic()
        pools, of_levels = level_pools.after(
            state.levels, played.trajectory, inputs.rollout, self._settings(iteration), iteration
        )
        state, metrics = learn(state.replace(levels=None), played, inputs, self.programs)
        state, metrics = state.replace(levels=pools), metrics | of_levels
        advantages: Any = metrics.pop("recorded", None)
        metrics = host_metrics(metrics) | played_metrics(played.stats)  # groups kept by resampling are a biased sample
        seconds = {"time/rollout": rolled - began, "time/update": time.monotonic() - scored}
        if prompts:
            seconds["time/mutual_information"] = looked - rolled
        if taken is not None:
            step, learned = self.parts.imitation_chunks + iteration + 1, time.monotonic()
            self.recorder.write(self.folder, step, inputs, taken, advantages, self.progress.roll_backs.count)
            seconds["time/record"] = scored - looked + time.monotonic() - learned
        score = self._record(iteration, state, played, metrics | services | prompts, seconds)
        self._check_and_save(iteration, state, metrics, score)
        return state

    def _settings(self, iteration: int) -> Config:
        """The configuration of an iteration, from 0: settings may have changed when the run went on."""
        return self.progress.history.at(self.parts.imitation_chunks + iteration + 1)

    def _inputs(self, iteration: int, levels: level_pools.Pools | None = None) -> IterationInputs:
        """Returns the keys, episodes and settings of an iteration, counted from 0; `levels` are its pools."""
        config, env = self._settings(iteration), self.parts.train_env
        stream = run_keys.after_roll_backs(self.parts.key, self.progress.roll_backs.count)
        turns, split = self.progress.horizon.turns(iteration), self.parts.train_splits.of(Split.TRAIN)
        ids, temperature = build.training_ids(config), float(build.schedules(config)["temperature"](iteration))
        episodes, levels_key = len(ids.group), run_keys.of_iteration(stream, run_keys.LEVELS, iteration)
        greedy = None
        if self.programs.greedy is not None:
            greedy = build.rollout_settings(config, env, episodes // self.programs.group_size, 0.0, turns, split=split)
        return IterationInputs(
            rollout_key=run_keys.of_iteration(stream, run_keys.ROLLOUT, iteration),
            update_key=run_keys.of_iteration(stream, run_keys.UPDATE, iteration),
            ids=level_pools.choose(levels, ids, config, levels_key, iteration),
            rollout=build.rollout_settings(config, env, episodes, temperature, turns, iteration=iteration, split=split),
            greedy=greedy,
            update=build.update_settings(config, self._rate_factor(iteration), iteration),
        )

    def _service_metrics(self, iteration: int, trajectory: Trajectory, seconds: float) -> dict[str, float]:
        """Reports failures of the services in a rollout, before the update, and returns their metrics."""
        services, env = self.parts.services, self.parts.train_env
        if services is None:
            return {}
        env.clear()
        report, restarts = of_all_hosts(env.take_report(), services.take_restarts())
        found = service_metrics(trajectory, list(services.tasks), report, seconds, restarts)
        last = report.failures[-1].error if report.failures else "none"
        if report.failures or found["env/retries"] or restarts:
            self.folder.log_failures(failure_rows(self.parts.imitation_chunks + iteration + 1, report.failures))
            shown = f"{len(report.failures)} episodes failed, {found['env/retries']:.0f} instances replaced"
            shown += f", servers started again {restarts} times" if restarts else ""
            self.view.note(f"environments: {shown}" + (f" ({last})" if report.failures else ""))
        where = ", ".join(f"{task.config.label} {task.address}" for task in services.tasks.values())
        limit = self.config.env.max_failed
        guards.check_services(found["env/failed_share"], limit, where, last, self.progress.kept)
        return found

    def _prompt_metrics(self, state: TrainState, trajectory: Trajectory, temperature: jax.Array) -> dict[str, float]:
        """Measures, when due, how much responses depend on their prompts, under the policy that sampled them."""
        iteration, program = int(state.iteration), self.parts.prompt_information
        if program is None or (iteration and (iteration + 1) % self.config.train.mutual_information_every):
            return {}
        key = run_keys.of_iteration(self.parts.key, run_keys.MEASUREMENT, iteration)
        # With a KL term the update measures the divergence itself.
        reference = state.reference if self.config.algo.kl.kind == "none" else None
        found = host_metrics(program(state.merged_params(), reference, trajectory, temperature, key))
        newest = self.progress.monitor.newest
        return found | mutual_information.smoothed(found, newest if found.keys() <= newest.keys() else {})

    def _record(
        self, iteration: int, state: TrainState, played: Played, metrics: dict[str, Any], seconds: dict[str, float]
    ) -> float | None:
        """Validates if that is due, and logs and shows the metrics of an iteration; returns success in validation."""
        config, progress = self._settings(iteration), self.progress
        step = self.parts.imitation_chunks + iteration + 1
        counters, chosen, factor = total_stats(played.stats), rates.rates(config), self._rate_factor(iteration)
        row = {
            "stage": "rl",
            "iteration": iteration + 1,
            **metrics,
            "actor/lr": 0.0 if iteration < config.train.critic_warmup else chosen.policy * factor,
            **({"critic/lr": chosen.critic * factor} if config.algo.advantage.has_critic else {}),
            "rollout/horizon": progress.horizon.turns(iteration),
            "rollout/temperature": float(build.schedules(config)["temperature"](iteration)),
            "rollout/active_token_share": counters["sampled_tokens"] / max(counters["slot_steps"], 1),
            **{f"rollout/{name}": value for name, value in counters.items()},
        }
        progress.horizon.observe(metrics)
        progress.totals.count(counters)
        if played.greedy_stats is not None:
            progress.totals.count(total_stats(played.greedy_stats))
        progress.totals.trained_tokens += int(metrics["update/trained_tokens"]) * config.algo.epochs
        progress.totals.skipped_updates += int(metrics["update/skipped"])
        if _due(self.config.train.validate_every, iteration + 1, self.config.train.iterations):
            row |= self.held_out.validation(state.merged_params())
        progress.monitor.see(row)
        rate = counters["sampled_tokens"] / (seconds["time/rollout"] + seconds["time/update"])
        # Since the row before: checkpoint, validation, records.
        since, self._row_ended = self._row_ended, time.monotonic()
        seconds = {**seconds, "time/other": self._row_ended - since - sum(seconds.values())}
        clock = {**seconds, "time/total": progress.seconds(), "time/tokens_per_second": rate, "time/unix": time.time()}
        self.folder.log({"step": step, **row, **clock})
        heads = jax.tree.map(lambda x: x[:: config.rollout.group_size], played.trajectory.replace(response=None))
        self.folder.log_levels(step, "rl", level_ids(heads))
        self.view.update(IterationView.of_row(row, rate, progress.totals.skipped_updates))
        return row.get("validation/success")

    def _check_and_save(self, iteration: int, state: TrainState, metrics: dict[str, Any], score: float | None) -> None:
        """Stops a run that goes wrong, and saves the state if a checkpoint is due or no validation was better."""
        config, progress = self.config.train, self.progress
        skipped = int(metrics["update/skipped_in_a_row"])
        guards.check_skipped(skipped, config.max_bad_updates, "optim.lr", progress.kept)
        guards.check_logprobs(self.config, metrics, progress.kept)
        # While updates are not finite, older checkpoints are not replaced: they may be the last good ones.
        unsound = int(state.bad_updates) > progress.monitor.empty_in_a_row
        collapsed = bool(progress.monitor.stopped_by)
        last = iteration + 1 == config.iterations or collapsed
        best = score is not None and not unsound and score > progress.best_score()
        regular = last or _due(config.checkpoint_every, iteration + 1, 0)
        due = last or ((best or regular) and not unsound)
        if due and not (collapsed and config.on_collapse == "roll_back"):
            progress.save(self.parts.imitation_chunks + iteration + 1, state, score, regular=regular)
        if regular and not last and iteration + 1 >= _GROWTH * self._plotted:
            self._plotted = iteration + 1
            self._plot()

    def _finish(self, state: TrainState) -> dict[str, Any]:
        """Evaluates the policy, and writes the summary and the curves."""
        progress, held_out, services = self.progress, self.held_out, self.parts.services
        self.view.note(f"evaluating on {counted(sum(held_out.levels), 'level')}")
        last = self.parts.imitation_chunks + int(state.iteration)
        evaluated = held_out.outcomes(state.merged_params(), lambda: self._stop_if_asked(last, state))
        learned = learned_levels(self.folder.levels(), self.folder.metrics(), last)
        midway = progress.midway.counts()
        seen = {
            label: known | midway.get(label, {}) for label, known in held_out.seen(learned, evaluated.levels).items()
        }
        categories = None if services is None else services.categories(held_out.levels)
        outcomes = progress.imitation_outcomes, evaluated.success, held_out.baselines()
        imitated = self.parts.imitation_chunks > 0
        for index, count in ({} if services is None else services.seen_items(held_out.levels)).items():
            seen[held_out.labels[index]]["seen_items"] = count
        summary = {
            **success_tables(*outcomes, imitated=imitated),
            "mean_turns": evaluated.mean_turns,
            "mean_tokens": evaluated.mean_tokens,
            "by_category": {} if categories is None else tables_by_category(categories, *outcomes, imitated=imitated),
            "held_out": all(task["held_out"] is True for task in seen.values()),
            "seen_levels": None if learned is None else sum(task["seen_levels"] for task in seen.values()),
            "seen_midway": sum(task["seen_midway"] for task in midway.values()) if midway else None,
            "levels": seen,
            "iterations": int(state.iteration),
            "stopped_by": progress.monitor.stopped_by,
            "roll_backs": progress.roll_backs.summary(),
            "gradient_steps": int(state.gradient_steps),
            **{k: v for k, v in dataclasses.asdict(progress.totals).items() if k != "seconds"},
            "programs_compiled": self.parts.programs.count(),
            "programs": sorted(self.parts.programs.compiled),
            "seconds": {"total": progress.seconds()},
            "devices": self.parts.programs.mesh.size,
            "started_from": next((row["start"] for row in self.folder.processes() if "start" in row), None),
            **machine(),
        }
        self.folder.keep_earlier_end(summary["iterations"])
        self._plot(
            **{name: summary["success"].get(name, {}).get("mean") for name in ("random", "optimal")},
            optimal_name=optimal_label(summary.get("optimal_is", EXACT)),
        )
        self.folder.write_summary(summary)
        return summary

    def _plot(self, **baselines: Any) -> None:
        """Draws the curves so far."""
        rows = self.folder.metrics()
        if hosts.is_writer():
            file, title = self.folder.path / "curves.png", os.path.basename(self.folder.place)
            from agentrl_jax.runs.curves import plot_curves  # matplotlib takes as long as JAX to import

            plot_curves(rows, file, **baselines, title=title)

    def close(self) -> None:
        """Closes the services."""
        if self.parts.services is not None:
            self.parts.services.close()

    def _rate_factor(self, iteration: int) -> float:
        """What the learning rates of an iteration are multiplied by: their schedule, lowered by each roll-back."""
        rates_of_run = build.learning_rates(self._settings(iteration))
        return float(rates_of_run(iteration)) * self.config.train.roll_back_factor**self.progress.roll_backs.count


_GROWTH = 1.2
"""The curves are drawn again when a run is longer by this factor, so that drawing costs the same per iteration."""


def _due(every: int, number: int, last: int) -> bool:
    return every > 0 and (number % every == 0 or number == last)
