"""The stage of reinforcement learning: iterations of rollout and update, with their records and checkpoints."""

import functools
import itertools
import time
from typing import Any

import jax
import numpy as np

from agentrl_jax.algos import mutual_information
from agentrl_jax.config import Config, rates
from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.evaluate.service_report import failure_rows, of_all_hosts, service_metrics
from agentrl_jax.learner.state import TrainState
from agentrl_jax.parallel import hosts
from agentrl_jax.rollout.trajectory import Trajectory, hexadecimal, level_ids
from agentrl_jax.runs.live import IterationView
from agentrl_jax.setup import build_inputs, build_model, level_pools, run_keys, start
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.setup.programs import host_metrics, played_metrics, total_stats
from agentrl_jax.train import guards
from agentrl_jax.train.iteration import IterationInputs, IterationPrograms, Played, learn, play
from agentrl_jax.train.progress import RunProgress
from agentrl_jax.train.recorder import Recorder
from agentrl_jax.train.teacher import Teacher, check_teacher
from envs_jax.splits import Split

_GROWTH = 1.2
"""The curves are drawn again when a run is longer by this factor, so that drawing costs the same per iteration."""


class Reinforcement:
    """See `train.stages.Stage`. A step is an iteration and writes one row; iterations count from 0 here."""

    name = "rl"
    _plotted = 0
    """The iteration at which the curves were drawn last."""
    _row_ended = 0.0
    """When the row of the iteration before was complete; in the first iteration of a process, when it began."""

    def __init__(self, progress: RunProgress, held_out: HeldOut, first_row: int):
        self.progress, self.held_out = progress, held_out
        self.folder, self.view = progress.folder, progress.view
        self.parts = parts = progress.parts
        self.config = config = parts.config
        self.first_row, self.rows = first_row, config.train.iterations
        self.programs = IterationPrograms(parts.rollout, parts.update, parts.greedy, config.rollout.group_size)
        self.recorder = Recorder(parts)
        self.teacher = Teacher.of_run(parts, held_out)

    def begin(self, state: TrainState) -> TrainState:
        """Evaluates the start; the checkpoint saved here shows that it has been done."""
        self.parts.train_env.take_report()  # earlier episodes belong to no iteration
        self.view.note("evaluating the start")
        step = self.first_row
        evaluated = self.held_out.outcomes(state.merged_params(), lambda: self.progress.stop_if_asked(step, state))
        self.progress.imitation_outcomes = evaluated.success
        self.folder.log_levels_once(step, "test", [*itertools.chain(*evaluated.levels)])
        tx, kept, going_on = self.parts.tx, build_model.kept_by(self.config), self.config.start.optimizer
        begin = functools.partial(start.begin_learning, tx=tx, kept=kept, going_on=going_on)
        placement = self.progress.placement(jax.eval_shape(begin, state))
        made_of = ("begin_learning", tx, kept, going_on, jax.tree.flatten(placement))
        state = jit_once(begin, made_of, out_shardings=placement, donate_argnums=0)(state)
        state = state.replace(stage_state=self.new_stage_state())
        self.progress.replace(step, state)
        # Rows of iterations without a complete checkpoint before them could not be resumed.
        hosts.from_writer(self.progress.checkpoints.wait)
        return state

    def resume(self, state: TrainState) -> None:
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

    def new_stage_state(self) -> level_pools.Pools | None:
        """The levels that tasks choose from."""
        return self.progress.placed(self.parts.level_pools)

    def row(self, state: TrainState) -> int:
        """Number of rows that the run has written."""
        return self.first_row + int(state.step)

    def ended(self, state: TrainState) -> bool:
        """Whether all iterations are done, or a collapse or a validation ends them."""
        progress = self.progress
        return int(state.step) >= self.rows or bool(progress.monitor.stopped_by or progress.target.reached)

    def recovered(self, state: TrainState) -> TrainState:
        """The state of before a collapse; without one, or if the run has gone back often enough, the state itself.

        At the start of a process there may be one, of a run that did not roll back before.
        """
        config, progress = self.config.train, self.progress
        allowed = config.on_collapse == "roll_back" and progress.roll_backs.count <= config.max_roll_backs
        return progress.roll_back(state, self.first_row) if progress.monitor.stopped_by and allowed else state

    def play(self, state: TrainState) -> Played:
        """The rollout of the next iteration."""
        return play(state, self.inputs(int(state.step), state.stage_state), self.programs)

    def advance(self, state: TrainState) -> TrainState:
        """Runs one iteration: levels and keys, rollout, update; records it, and saves the state if that is due."""
        iteration = int(state.step)
        inputs = self.inputs(iteration, state.stage_state)
        teacher = self._teacher_metrics(state)
        began = time.monotonic()
        self._row_ended = self._row_ended or began
        played = play(state, inputs, self.programs)
        jax.block_until_ready(played.trajectory)
        rolled = time.monotonic()
        self.progress.midway.add(played.trajectory)
        services = self._service_metrics(iteration, played.trajectory, rolled - began)
        prompts = self._prompt_metrics(state, played.trajectory, inputs.rollout.temperature)
        looked = time.monotonic()
        measured = self._own_metrics(played.trajectory)
        taken = self.recorder.take(state, played.trajectory, inputs) if self.recorder.due(iteration) else None
        planning = time.monotonic()
        if self.teacher is not None:
            hints, teacher["distill/planned"] = self.teacher.hints(inputs.rollout_key, played.trajectory)
            played = played._replace(hints=hints)
        scored = time.monotonic()
        pools, of_levels = level_pools.after(
            state.stage_state, played.trajectory, inputs.rollout, self._settings(iteration), iteration
        )
        state, metrics = learn(state.replace(stage_state=None), played, inputs, self.programs)
        state, metrics = state.replace(stage_state=pools), metrics | of_levels
        advantages: Any = metrics.pop("recorded", None)
        metrics = host_metrics(metrics) | played_metrics(played.stats)  # groups kept by resampling are a biased sample
        seconds = {"time/rollout": rolled - began, "time/update": time.monotonic() - scored}
        if prompts:
            seconds["time/mutual_information"] = looked - rolled
        if self.teacher is not None:
            seconds["time/plans"] = scored - planning
        if taken is not None:
            learned, roll_backs = time.monotonic(), self.progress.roll_backs.count
            step = self.first_row + iteration + 1
            self.recorder.write(self.folder, step, iteration + 1, inputs, taken, advantages, roll_backs)
            seconds["time/record"] = planning - looked + time.monotonic() - learned
        more = services | prompts | teacher | host_metrics(measured)
        score = self._record(iteration, state, played, metrics | more, seconds)
        self._check_and_save(iteration, state, metrics, score)
        return state

    def _settings(self, iteration: int) -> Config:
        """The configuration of an iteration, from 0: settings may have changed when the run went on."""
        return self.progress.history.at(self.first_row + iteration + 1)

    def inputs(self, iteration: int, levels: level_pools.Pools | None = None) -> IterationInputs:
        """Returns the keys, episodes and settings of an iteration, counted from 0; `levels` are its pools."""
        config, env = self._settings(iteration), self.parts.train_env
        stream = run_keys.after_roll_backs(self.parts.key, self.progress.roll_backs.count)
        turns, split = self.progress.horizon.turns(iteration), self.parts.train_splits.of(Split.TRAIN)
        ids, temperature = build_inputs.training_ids(config), build_inputs.training_temperature(config, iteration)
        episodes, levels_key = len(ids.group), run_keys.of_iteration(stream, run_keys.LEVELS, iteration)
        greedy = None
        if self.programs.greedy is not None:
            greedy = build_inputs.rollout_settings(
                config, env, episodes // self.programs.group_size, 0.0, turns, split=split
            )
        return IterationInputs(
            rollout_key=run_keys.of_iteration(stream, run_keys.ROLLOUT, iteration),
            update_key=run_keys.of_iteration(stream, run_keys.UPDATE, iteration),
            ids=level_pools.choose(levels, ids, config, levels_key, iteration),
            rollout=build_inputs.rollout_settings(
                config, env, episodes, temperature, turns, iteration=iteration, split=split
            ),
            greedy=greedy,
            update=build_inputs.update_settings(config, self._rate_factor(iteration), iteration),
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
            self.folder.log_failures(failure_rows(self.first_row + iteration + 1, report.failures))
            shown = f"{len(report.failures)} episodes failed, {found['env/retries']:.0f} instances replaced"
            shown += f", servers started again {restarts} times" if restarts else ""
            self.view.note(f"environments: {shown}" + (f" ({last})" if report.failures else ""))
        where = ", ".join(f"{task.config.label} {task.address}" for task in services.tasks.values())
        limit = self.config.env.max_failed
        guards.check_services(found["env/failed_share"], limit, where, last, self.progress.kept)
        return found

    def _teacher_metrics(self, state: TrainState) -> dict[str, float]:
        """Success of a teacher that reads plans, before the first iteration and after those with a validation.

        Raises:
            UserError: before the first iteration it is too weak.
        """
        iteration = int(state.step)
        if self.teacher is None or (iteration and not _due(self.config.train.validate_every, iteration, 0)):
            return {}
        measured = self.teacher.measure(state)
        if not iteration:
            self.view.note(check_teacher(self.config, measured))
        return measured

    def _own_metrics(self, trajectory: Trajectory) -> dict[str, jax.Array]:
        """The metrics of the user, not waited for."""
        if self.parts.metrics is None:
            return {}
        numbers = {name: part.numbers for name, part in self.config.train.metrics.items()}
        return self.parts.metrics(trajectory, numbers)

    def _prompt_metrics(self, state: TrainState, trajectory: Trajectory, temperature: jax.Array) -> dict[str, float]:
        """Measures, when due, how much responses depend on their prompts, under the policy that sampled them."""
        iteration, program = int(state.step), self.parts.prompt_information
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
        """Validates if that is due, and logs and shows the metrics of an iteration; returns the score of train.best."""
        config, progress = self._settings(iteration), self.progress
        step = self.first_row + iteration + 1
        counters, chosen, factor = total_stats(played.stats), rates.rates(config), self._rate_factor(iteration)
        row = {
            "stage": self.name,
            "iteration": iteration + 1,
            **metrics,
            "actor/lr": 0.0 if iteration < config.train.critic_warmup else chosen.policy * factor,
            **({"critic/lr": chosen.critic * factor} if config.algo.advantage.has_critic else {}),
            "rollout/horizon": progress.horizon.turns(iteration),
            "rollout/temperature": float(build_inputs.schedules(config)["rollout.temperature"](iteration)),
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
            row |= self.held_out.validation(state.merged_params(state.evaluated))
        score = progress.target.score(row)
        progress.target.see(row)
        progress.monitor.see(row)
        rate = counters["sampled_tokens"] / (seconds["time/rollout"] + seconds["time/update"])
        # Since the row before: checkpoint, validation, records.
        since, self._row_ended = self._row_ended, time.monotonic()
        seconds = {**seconds, "time/other": self._row_ended - since - sum(seconds.values())}
        clock = {**seconds, "time/total": progress.seconds(), "time/tokens_per_second": rate, "time/unix": time.time()}
        self.folder.log({"step": step, **row, **clock})
        heads = jax.tree.map(lambda x: x[:: config.rollout.group_size], played.trajectory.replace(response=None))
        self.folder.log_levels(step, self.name, level_ids(heads))
        self.view.update(IterationView.of_row(row, rate, progress.totals.skipped_updates))
        if progress.target.reached:
            self.view.note(f"iteration {iteration + 1}: the run ends by train.stop ({progress.target.reached})")
        return score

    def _check_and_save(self, iteration: int, state: TrainState, metrics: dict[str, Any], score: float | None) -> None:
        """Stops a run that goes wrong, and saves the state if a checkpoint is due or no validation was better."""
        config, progress = self.config.train, self.progress
        skipped = int(metrics["update/skipped_in_a_row"])
        guards.check_skipped(skipped, config.max_bad_updates, "optim.lr", progress.kept)
        guards.check_logprobs(self.config, metrics, progress.kept)
        # While updates are not finite, older checkpoints are not replaced: they may be the last good ones.
        unsound = int(state.bad_updates) > progress.monitor.empty_in_a_row
        collapsed = bool(progress.monitor.stopped_by)
        last = iteration + 1 == config.iterations or collapsed or bool(progress.target.reached)
        best = score is not None and not unsound and score > progress.best_score()
        regular = last or _due(config.checkpoint_every, iteration + 1, 0)
        due = last or ((best or regular) and not unsound)
        if due and not (collapsed and config.on_collapse == "roll_back"):
            progress.save(self.first_row + iteration + 1, state, score, regular=regular)
        if regular and not last and iteration + 1 >= _GROWTH * self._plotted:
            self._plotted = iteration + 1
            self.progress.plot()

    def _rate_factor(self, iteration: int) -> float:
        """What the learning rates of an iteration are multiplied by: their schedule, lowered by each roll-back."""
        rates_of_run = build_inputs.learning_rates(self._settings(iteration))
        return float(rates_of_run(iteration)) * self.config.train.roll_back_factor**self.progress.roll_backs.count


def _due(every: int, number: int, last: int) -> bool:
    return every > 0 and (number % every == 0 or number == last)
