"""A run from its configuration to its summary: imitation, reinforcement learning, evaluation, checkpoints.

Steps number what `metrics.jsonl` and the checkpoints record: first chunks of imitation, then iterations.
"""

import dataclasses
import time
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console

from agentrl_jax.algos import mutual_information
from agentrl_jax.config import Config, rates, validate
from agentrl_jax.errors import refusals
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.evaluate.lines import optimal_label
from agentrl_jax.evaluate.seen import learned_levels, level_ids
from agentrl_jax.evaluate.service_report import failure_rows, service_metrics
from agentrl_jax.evaluate.summary import machine, success_tables, tables_by_category
from agentrl_jax.learner import prompt_information as dependence
from agentrl_jax.learner.state import TrainState
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.envs.batched_env import CompiledEnv, shared_prefix_len
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.envs.level_splits import level_splits
from agentrl_jax.rollout.trajectory import EpisodeIds, Trajectory
from agentrl_jax.rollout.transcript import transcripts
from agentrl_jax.runs.checkpoint import CheckpointError, Checkpoints
from agentrl_jax.runs.curves import plot_curves
from agentrl_jax.runs.live import LiveView, Progress, final_table
from agentrl_jax.runs.run_folder import RunFolder
from agentrl_jax.runs.totals import Totals
from agentrl_jax.setup import build, run_keys, start
from agentrl_jax.setup.demonstrations import check_imitable
from agentrl_jax.setup.programs import Programs, played_metrics, total_stats
from agentrl_jax.setup.service_tasks import Services, batched_envs
from agentrl_jax.stopping import closed_at_stop
from agentrl_jax.train import guards
from agentrl_jax.train.collapse_monitor import CollapseMonitor
from agentrl_jax.train.horizon import Horizon
from agentrl_jax.train.roll_back import RollBacks, kept_checkpoints
from envs_jax.budget import EXACT
from envs_jax.splits import Split

IMITATION_CHUNK = 25
"""Most gradient steps of imitation per dispatch and per row of metrics."""


def train(config: Config, console: Console | None = None) -> dict[str, Any]:
    """Trains an agent, or goes on with a run that was stopped, and returns its summary.

    The same configuration gives the same metrics and parameters bit for bit on the same hardware, however often the
    process was killed on the way. Only what is named time/, seconds or programs, which are those of the last process,
    differs.

    Args:
        config: the run.
        console: where progress is shown; standard output if left out.

    Returns:
        What summary.json holds.

    Raises:
        UserError: the run folder holds something else, a part of the configuration is of no use, too many updates in
            a row were not finite, or the learner's log-probabilities are not those of the rollout.
    """
    console = console or Console()
    with refusals():
        config = rates.with_rates(config)
        run = _Run(config)  # before the folder is taken, which would keep a configuration that is of no use
    with (
        RunFolder(config) as folder,
        Checkpoints(folder.checkpoints, keep=kept_checkpoints(config.train)) as checkpoints,
        LiveView(config.train.iterations, title=folder.path.name, console=console) as view,
        closed_at_stop(lambda: view.__exit__()),
        closed_at_stop(lambda: None if run.services is None else run.services.close()),
    ):
        try:
            summary = run.train(folder, checkpoints, view)
        finally:
            if run.services is not None:
                run.services.close()
    console.print(final_table(summary))
    console.print(f"run folder: {folder.path}", highlight=False)
    return summary


class _Run:
    """The parts of a run and the steps that use them."""

    folder: RunFolder
    checkpoints: Checkpoints
    view: LiveView
    watch: CollapseMonitor
    roll_backs: RollBacks

    def __init__(self, config: Config):
        mesh = make_mesh(config.devices, fsdp=config.mesh.fsdp, tensor=config.mesh.tensor)
        validate(config.replace(devices=mesh.size))
        self.config = config
        self.key = jax.random.key(config.seed)
        self.started = time.monotonic()
        self.programs = Programs(mesh, rollout_rules=build.ROLLOUT_RULES[config.mesh.rollout])
        self.pretrained = build.load_model(config.model, self.programs.parameter)
        self.tokenizer = build.load_tokenizer(config.model, self.pretrained)
        self.services = Services(config, lambda: self.folder.path) if config.served else None
        if self.services is not None:
            self.services.refuse_seen()
        self.batched_env, held_out = batched_envs(config, self.tokenizer, self.services)
        self.splits = level_splits(self.batched_env)
        self.model = build.build_model(
            config, self.tokenizer, self.pretrained, shared_prefix_len=shared_prefix_len(self.batched_env)
        )
        self.tx = build.build_optimizer(config)
        self.names = tuple(task.label for task in config.tasks)
        self.rates = build.learning_rates(config)
        self.temperature = build.schedules(config)["temperature"]
        self.horizon = Horizon(config)
        self.totals = Totals()
        self.before = 0.0
        self.imitation_outcomes: dict[str, list[bool]] = {}

        group_size = config.rollout.group_size
        engine = build.engine_config(config, self.tokenizer, group_size=group_size, slots=config.rollout.slots)
        build.check_positions(
            self.pretrained.config if self.pretrained else None,
            self.batched_env,
            engine,
            bootstrap=config.algo.advantage.bootstrap_truncated,
        )
        self.rollout = self.programs.rollout(
            "rollout", self.model, self.batched_env, engine, rounds=config.algo.dynamic_sampling, task_names=self.names
        )
        self.update = self.programs.update(self.model, build.learner_config(config), self.tx, engine)
        alone = build.engine_config(config, self.tokenizer, group_size=1, slots=0)
        remax = config.algo.advantage.kind == "remax"
        self.baseline = self.programs.rollout("baseline", self.model, self.batched_env, alone) if remax else None
        self.dependence = None
        if config.train.mutual_information_every:
            measured = dependence.for_run(config, self.tokenizer)
            self.dependence = self.programs.mutual_information(self.model, measured)
        episode = self.programs.rollout("evaluation", self.model, held_out, alone)
        splits = self.splits if held_out is self.batched_env else level_splits(held_out)
        self.held_out = HeldOut.of_run(config, held_out, splits, episode, self.programs.replicas)
        self.chunks = -(-config.imitation.steps // IMITATION_CHUNK) if config.imitation.levels else 0
        if self.chunks and isinstance(self.batched_env, CompiledEnv):
            check_imitable(self.batched_env, config.prompt.max_response_tokens, config.imitation.plans)

    def train(self, folder: RunFolder, checkpoints: Checkpoints, view: LiveView) -> dict[str, Any]:
        self.folder, self.checkpoints, self.view = folder, checkpoints, view
        self.roll_backs = RollBacks(folder.path / "roll_backs")
        for said in checkpoints.set_damaged_aside():
            view.note(said)
        if self.config.train.iterations:
            for line in start.notes(self.config):
                view.note(line)
        state = self._resume()
        if self.chunks and int(state.imitation_step) < self.config.imitation.steps:
            state = self._imitate(state)
        if not self.imitation_outcomes:
            state = self._begin_learning(state)
        while int(state.iteration) < self.config.train.iterations and not self.monitor.stopped_by:
            state = self._iterate(state)
            if self.monitor.stopped_by and self.config.train.on_collapse == "roll_back":
                state = self._roll_back(state)
        return self._finish(state)

    def _resume(self, frozen_params: Any = None) -> TrainState:
        """The state of the newest checkpoint that is good, or a fresh one; `frozen_params` is its frozen part if it
        is there."""
        initial = build.initial_state(self.config, self.model, self.pretrained, self._places)
        key = jax.random.fold_in(self.key, run_keys.INIT)
        step = self.roll_backs.newest_step(self.checkpoints)
        for said in self.folder.truncate(-1 if step is None else step):
            self.view.note(said)
        self.monitor = CollapseMonitor(self.config.train.on_collapse != "go_on", self.folder.metrics(), self.view.note)
        if step is None:
            return initial(key)
        meta = self.checkpoints.meta(step)
        since = self.roll_backs.records[meta.get("roll_backs", 0) :]
        try:
            self.totals = Totals(**(since[-1] if since else meta)["totals"])
            self.imitation_outcomes = {how: list(meta["imitation_outcomes"][how]) for how in meta["imitation_outcomes"]}
            self.horizon.restore(meta.get("horizon", self.horizon.saved()))
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{self.checkpoints.path / str(step)}: the record of step {step} is not that of a run ({error}); put "
                f"back a copy, or rename the folder to {step}.damaged to go on from an earlier checkpoint"
            ) from error
        if self.roll_backs.count > self.config.train.max_roll_backs:
            self.monitor.stopped_by = self.roll_backs.records[-1]["alarm"]
        self.before = self.totals.seconds
        self.view.note(f"going on from the checkpoint of step {step}")
        known = len(self.folder.metrics())
        if known < step:
            self.view.note(f"metrics.jsonl has {known} of the {step} rows before it; the others are lost")
        shapes = jax.eval_shape(initial, key)
        like = jax.tree.map(
            lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes, self._places(shapes)
        )
        state = self.checkpoints.restore(step, like.replace(frozen_params=None))
        if like.frozen_params is None:
            return state
        return state.replace(frozen_params=initial(key).frozen_params if frozen_params is None else frozen_params)

    def _roll_back(self, state: TrainState) -> TrainState:
        """The state of the last checkpoint before the collapse began; the present one where there is none."""
        finding, iteration = self.monitor.finding, int(state.iteration)
        assert finding.began is not None
        before = [step for step in self.checkpoints.steps() if self.chunks <= step < self.chunks + finding.began]
        if self.monitor.solved or not before:
            why = "there is nothing left to learn" if before else "no checkpoint is older than its beginning"
            self.view.note(f"{finding.alarm.name} ends the run: {why}")
            self._save(self.chunks + iteration, state)
            return state
        self.totals.seconds = self._seconds()
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
            f"{before[-1] - self.chunks} (roll-back {self.roll_backs.count} of {self.config.train.max_roll_backs})"
        )
        self.started = time.monotonic()
        return self._resume(state.frozen_params)

    def _places(self, shapes: Any) -> Any:
        return self.programs.placement(shapes, self.model.decoder)

    def _seconds(self) -> float:
        return self.before + time.monotonic() - self.started

    def _save(self, step: int, state: TrainState) -> None:
        self.totals.seconds = self._seconds()
        meta = {
            "totals": dataclasses.asdict(self.totals),
            "imitation_outcomes": self.imitation_outcomes,
            "horizon": self.horizon.saved(),
            "roll_backs": self.roll_backs.count,
        }
        self.checkpoints.save(step, state.replace(frozen_params=None), meta)

    def _due(self, every: int, number: int, last: int) -> bool:
        return every > 0 and (number % every == 0 or number == last)

    # Imitation

    def _imitate(self, state: TrainState) -> TrainState:
        config = self.config.imitation
        with refusals():
            rows, levels = start.demonstration_rows(
                self.config, self.batched_env, self.splits, self.tokenizer, self.services, self.key
            )
        self.view.note(f"{len(levels)} demonstrations, {config.plans} plans on {len(set(levels))} different levels")
        if not int(state.imitation_step):
            self.folder.log_levels(0, "imitation", levels)
        program = self.programs.imitation(self.model, self.tx, batch=config.batch)
        rates = jnp.float32(config.lr), jnp.float32(self.config.optim.max_grad_norm)
        key = jax.random.fold_in(self.key, run_keys.IMITATION)
        while (done := int(state.imitation_step)) < config.steps:
            began = time.monotonic()
            steps = min(IMITATION_CHUNK, config.steps - done)
            state, metrics = program(state, rows, key, jnp.int32(steps), *rates)
            metrics = _plain(metrics)
            step = done // IMITATION_CHUNK + 1
            self.totals.skipped_updates += int(metrics["imitation/skipped"])
            self.folder.log({"step": step, "stage": "imitation", **metrics, "time/step": time.monotonic() - began})
            self.view.note(
                f"imitation {int(state.imitation_step):>5}/{config.steps}  loss {metrics['imitation/loss']:.3f}"
            )
            self._check_skipped(metrics["imitation/skipped_in_a_row"], "imitation.lr")
            if step % self.config.train.checkpoint_every == 0 and step < self.chunks and not int(state.bad_updates):
                self._save(step, state)
        return state

    # Reinforcement learning

    def _begin_learning(self, state: TrainState) -> TrainState:
        """What happens once between imitation and learning; the checkpoint made here shows that it has happened."""
        if isinstance(self.batched_env, HostEnv):
            self.batched_env.host_episodes.take_report()  # what came before is no iteration's
        self.view.note("evaluating the start")
        evaluated = self.held_out.outcomes(state.merged_params())
        self.imitation_outcomes = evaluated.success
        self.folder.log_levels(self.chunks, "test", [level for task in evaluated.levels for level in task])
        state = start.begin_learning(state, self.tx, reference=build.needs_reference(self.config))
        state = jax.device_put(state, self._places(state))
        self._save(self.chunks, state)
        return state

    def _iterate(self, state: TrainState) -> TrainState:
        config, iteration = self.config, int(state.iteration)
        temperature, turns = float(self.temperature(iteration)), self.horizon.turns(iteration)
        split = self.splits.of(Split.TRAIN)
        settings = build.rollout_settings(
            config, self.batched_env, self._episodes, temperature, turns, iteration=iteration, split=split
        )
        began = time.monotonic()
        stream = run_keys.after_roll_backs(self.key, self.roll_backs.count)
        key = run_keys.of_iteration(stream, run_keys.ROLLOUT, iteration)
        trajectory, stats = self.rollout(state.merged_params(), key, build.training_ids(config), settings)
        greedy = self._greedy(state, key, trajectory.ids, turns)
        jax.block_until_ready(trajectory)
        rolled = time.monotonic()
        of_services = self._of_services(self.chunks + iteration + 1, trajectory, rolled - began)
        of_prompts = self._dependence(state, trajectory, settings.temperature)
        measured = time.monotonic()
        key = run_keys.of_iteration(stream, run_keys.UPDATE, iteration)
        factor = float(self.rates(iteration)) * config.train.roll_back_factor**self.roll_backs.count
        state, metrics = self.update(
            state, trajectory, settings.temperature, key, build.update_settings(config, factor, iteration), *greedy
        )
        metrics = _plain(metrics)
        learned = time.monotonic()

        chosen, counters = rates.rates(config), total_stats(stats)
        metrics |= played_metrics(stats)  # what resampling kept is no fair sample of the policy's episodes
        row = {
            "stage": "rl",
            "iteration": iteration + 1,
            **metrics,
            **of_services,
            **of_prompts,
            "actor/lr": 0.0 if iteration < config.train.critic_warmup else chosen.policy * factor,
            **({"critic/lr": chosen.critic * factor} if config.algo.advantage.has_critic else {}),
            "rollout/horizon": turns,
            "rollout/temperature": temperature,
            "rollout/active_token_share": counters["sampled_tokens"] / max(counters["slot_steps"], 1),
            **{f"rollout/{name}": value for name, value in counters.items()},
        }
        self.horizon.observe(metrics)
        self.totals.count(counters)
        self.totals.trained_tokens += int(metrics["update/trained_tokens"]) * config.algo.epochs
        self.totals.skipped_updates += int(metrics["update/skipped"])
        if self._due(config.train.validate_every, iteration + 1, config.train.iterations):
            row |= self.held_out.validation(state.merged_params())
        self.monitor.see(row)
        step = self.chunks + iteration + 1
        seconds = {"time/rollout": rolled - began, "time/update": learned - measured, "time/total": self._seconds()}
        seconds |= {"time/mutual_information": measured - rolled} if of_prompts else {}
        rate = counters["sampled_tokens"] / (learned - measured + rolled - began)
        self.folder.log({"step": step, **row, **seconds, "time/tokens_per_second": rate})
        heads = jax.tree.map(lambda x: x[:: config.rollout.group_size], trajectory.replace(response=None))
        self.folder.log_levels(step, "rl", level_ids(heads))
        if self._due(config.train.trajectories_every, iteration + 1, config.train.iterations):
            texts = transcripts(trajectory, self.tokenizer, self.names, config.train.trajectories)
            self.folder.log_trajectories([{"step": step, **text} for text in texts])
        self._show(row, rate)
        self._check_skipped(metrics["update/skipped_in_a_row"], "optim.lr")
        guards.check_logprobs(config.algo, metrics, self._kept())
        # While updates fail, older checkpoints, which may be the last good ones, are not replaced.
        collapsed = bool(self.monitor.stopped_by)
        last = iteration + 1 == config.train.iterations or collapsed
        due = last or (self._due(config.train.checkpoint_every, iteration + 1, 0) and not int(state.bad_updates))
        if due and not (collapsed and config.train.on_collapse == "roll_back"):
            self._save(step, state)
        return state

    def _of_services(self, step: int, trajectory: Trajectory, seconds: float) -> dict[str, float]:
        """What a rollout tells of the services, before anything is learned from it."""
        if self.services is None or not isinstance(self.batched_env, HostEnv):
            return {}
        self.batched_env.host_episodes.clear()
        report = self.batched_env.host_episodes.take_report()
        restarts = self.services.take_restarts()
        found = service_metrics(trajectory, report, seconds, restarts)
        if report.failures or found["env/retries"] or restarts:
            self.folder.log_failures(failure_rows(step, report.failures))
            shown = f"{len(report.failures)} episodes failed, {found['env/retries']:.0f} instances replaced"
            shown += f", servers started again {restarts} times" if restarts else ""
            self.view.note(f"services: {shown}" + (f" ({report.failures[-1].error})" if report.failures else ""))
        where = ", ".join(f"{task.config.label} {task.address}" for task in self.services.tasks)
        last = report.failures[-1].error if report.failures else "none"
        guards.check_services(found["env/failed_share"], self.config.env.max_failed, where, last, self._kept())
        return found

    def _greedy(self, state: TrainState, key: jax.Array, played: EpisodeIds, turns: int) -> tuple[Trajectory, ...]:
        """One greedy episode a group, where the learning rule reads it.

        Args:
            state: of the policy.
            key: of the rollout.
            played: the groups that are learned from, of which resampling may have put some on other levels.
            turns: that may be played.
        """
        if self.baseline is None:
            return ()
        ids = jax.tree.map(lambda x: x[:: self.config.rollout.group_size], played)
        settings = build.rollout_settings(
            self.config, self.batched_env, ids.group.shape[0], 0.0, turns, split=self.splits.of(Split.TRAIN)
        )
        trajectory, stats = self.baseline(state.merged_params(), key, ids, settings)
        self.totals.count(total_stats(stats))
        return (trajectory,)

    def _dependence(self, state: TrainState, trajectory: Trajectory, temperature: jax.Array) -> dict[str, float]:
        """How much responses depend on their prompts, where it is due, under the policy that gave them."""
        iteration = int(state.iteration)
        if self.dependence is None or (iteration and (iteration + 1) % self.config.train.mutual_information_every):
            return {}
        key = run_keys.of_iteration(self.key, run_keys.MEASUREMENT, iteration)
        # With a KL term the update measures the divergence itself.
        reference = state.reference if self.config.algo.kl.kind == "none" else None
        found = _plain(self.dependence(state.merged_params(), reference, trajectory, temperature, key))
        before: dict[str, Any] = next((r for r in reversed(self.monitor.rows) if found.keys() <= r.keys()), {})
        return found | mutual_information.smoothed(found, before)

    @property
    def _episodes(self) -> int:
        return sum(task.groups for task in self.config.tasks) * self.config.rollout.group_size

    def _show(self, row: dict[str, Any], rate: float) -> None:
        progress = Progress(
            iteration=row["iteration"],
            success=row["train/success"],
            mean_return=row["train/return"],
            in_group_std=row["rollout/in_group_std"],
            entropy=row["actor/entropy"],
            logprob_gap=row["rollout/logprob_gap_mean"],
            tokens_per_second=rate,
            bad_updates=self.totals.skipped_updates,
        )
        self.view.update(progress)

    def _check_skipped(self, in_a_row: float, rate: str) -> None:
        guards.check_skipped(int(in_a_row), self.config.train.max_bad_updates, rate, self._kept())

    def _kept(self) -> str:
        step = self.checkpoints.latest_step()
        return "there is no checkpoint yet" if step is None else f"the last checkpoint, step {step}, is kept"

    def _finish(self, state: TrainState) -> dict[str, Any]:
        before = self.imitation_outcomes
        self.view.note(f"evaluating on {sum(self.held_out.levels)} levels")
        evaluated = self.held_out.outcomes(state.merged_params())
        trained = evaluated.success
        learned = learned_levels(self.folder.levels(), self.folder.metrics())
        seen = self.held_out.seen(learned, evaluated.levels)
        baselines, imitated = self.held_out.baselines(), self.chunks > 0
        kinds = None if self.services is None else self.services.kinds(self.held_out.levels)
        by_kind = {} if kinds is None else tables_by_category(kinds, before, trained, baselines, imitated=imitated)
        items = [] if self.services is None else self.services.seen_items(self.held_out.levels)
        for known, count in zip(seen.values(), items):
            known["seen_items"] = count
        summary = {
            **success_tables(before, trained, baselines, imitated=imitated),
            "by_category": by_kind,
            "held_out": all(task["held_out"] is True for task in seen.values()),
            "seen_levels": None if learned is None else sum(task["seen_levels"] for task in seen.values()),
            "levels": seen,
            "iterations": int(state.iteration),
            "stopped_by": self.monitor.stopped_by,
            "roll_backs": self.roll_backs.summary(),
            "gradient_steps": int(state.gradient_steps),
            **{k: v for k, v in dataclasses.asdict(self.totals).items() if k != "seconds"},
            "programs_compiled": self.programs.count(),
            "programs": sorted(self.programs.compiled),
            "seconds": {"total": self._seconds()},
            "devices": self.programs.mesh.size,
            **machine(),
        }
        self.folder.write_summary(summary)
        plot_curves(
            self.folder.metrics(),
            self.folder.path / "curves.png",
            **{name: summary["success"].get(name, {}).get("mean") for name in ("random", "optimal")},
            optimal_name=optimal_label(summary.get("optimal_is", EXACT)),
            title=self.folder.path.name,
        )
        return summary


def _plain(metrics: Any) -> dict[str, Any]:
    """Metrics on the host: one transfer for all of them."""
    return {name: value.tolist() for name, value in jax.device_get(metrics).items()}
