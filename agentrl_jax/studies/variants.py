"""The variants of a comparison: what they share, and how a variant runs with all its seeds.

Shapes: `S` seeds, `n` held-out levels.
"""

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from agentrl_jax.algos import collapse
from agentrl_jax.config import Config, to_dict
from agentrl_jax.config.comparison import Comparison
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.evaluate.eval_set import EvalSet
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.evaluate.summary import machine
from agentrl_jax.learner.state import TrainState, init_state
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.envs.batched_env import shared_prefix_len
from agentrl_jax.rollout.envs.level_splits import level_splits
from agentrl_jax.rollout.trajectory import RolloutSettings, hexadecimal
from agentrl_jax.setup import build, run_keys, start
from agentrl_jax.setup.demonstrations import check_imitable
from agentrl_jax.setup.programs import Programs
from agentrl_jax.studies.seeds import Seeds
from agentrl_jax.train.horizon import Horizon
from agentrl_jax.train.iteration import IterationInputs, IterationPrograms, iterate
from envs_jax.budget import optimal_label
from envs_jax.splits import Split

Record = dict[str, Any]
"""Results of a variant, as stored in its file, see `Variants.play`."""


class Variants:
    """What variants share: the environment, each seed's start, and the programs that do not depend on the rule."""

    def __init__(self, comparison: Comparison, console: Console):
        self.comparison, self.console = comparison, console
        self.config = config = comparison.shared
        available = jax.devices()
        devices = available[: comparison.devices or len(available)]
        if comparison.devices > len(available):
            raise UserError(f"devices is {comparison.devices}, but there are {len(available)}")
        self.seeds = Seeds(config.seed, comparison.seeds, devices)
        self.alone = Programs(make_mesh(1))
        self.pretrained = build.load_model(config.model, self.alone.parameter)
        self.tokenizer = build.load_tokenizer(config.model, self.pretrained)
        self.batched_env = build.build_compiled_env(config, self.tokenizer)
        self.model = dataclasses.replace(self._model(config), critic="none")
        group_size = config.rollout.group_size
        self.engine = build.engine_config(config, self.tokenizer, group_size=group_size, slots=config.rollout.slots)
        build.check_positions(
            self.pretrained.config if self.pretrained else None,
            self.batched_env,
            self.engine,
            bootstrap=any(variant.algo.advantage.bootstrap_truncated for variant in comparison.variants.values()),
        )
        if config.imitation.levels:
            check_imitable(self.batched_env, config.prompt.max_response_tokens, config.imitation.plans)
        self.ids = build.training_ids(config)
        single = build.engine_config(config, self.tokenizer, group_size=1, slots=0)
        rounds = {variant.algo.dynamic_sampling for variant in comparison.variants.values()}
        self.rollouts = {number: self._rollout(self.engine, number) for number in rounds}
        self.greedy = self._rollout(single)
        self.episode = self.alone.rollout("evaluation", self.model, self.batched_env, single)
        self.evaluation = self.seeds.each(self._single)
        self.splits = level_splits(self.batched_env)
        self.held_out = HeldOut.of_run(config, self.batched_env, self.splits, self.episode)
        self.imitated: list[set[str]] = [set() for _ in self.seeds.numbers]
        with jax.default_device(devices[0]):
            self.policies, self.frozen_params = self._begin()

    def _model(self, config: Config) -> Any:
        return build.build_model(
            config, self.tokenizer, self.pretrained, shared_prefix_len=shared_prefix_len(self.batched_env)
        )

    def _rollout(self, engine: Any, rounds: int = 1) -> Any:
        """`IterationPrograms.rollout` over all seeds: trained parameters, keys, ids and horizons are [S, ...]."""
        names = tuple(task.label for task in self.config.tasks)
        program = self.alone.rollout(
            f"rollout {rounds}", self.model, self.batched_env, engine, rounds=rounds, task_names=names
        )

        def play(policy, mine, shared):
            (key, horizon, ids), (frozen_params, settings) = mine, shared
            trajectory, stats = program(_player(policy, frozen_params), key, ids, settings.replace(horizon=horizon))
            return trajectory, jax.tree.map(jnp.sum, stats)

        over_seeds = self.seeds.each(play)

        def rollout(params, keys, ids, settings):
            shared = params.get("frozen"), settings.replace(horizon=None)
            return over_seeds(params["policy"], (keys, settings.horizon, ids), shared)

        return rollout

    def _begin(self) -> tuple[Any, Any]:
        """Initial policies [S, ...] of every variant, and their frozen parameters."""
        config, pretrained = self.config, self.pretrained.params if self.pretrained else None
        tx = build.build_optimizer(config)

        def fresh(key):
            return init_state(jax.random.fold_in(key, run_keys.INIT), self.model, tx, False, pretrained)

        frozen_params = jax.jit(lambda key: fresh(key).frozen_params)(self.seeds.keys[0])
        states = self.seeds.each(lambda key, mine, shared: fresh(key).replace(frozen_params=None))(
            self.seeds.keys, None, None
        )
        steps = config.imitation.steps if config.imitation.levels else 0
        if steps:
            self.console.print(f"imitation of {self.comparison.seeds} seeds", highlight=False)
            keys = [jax.random.key(number) for number in self.seeds.numbers]
            found = [
                start.demonstration_rows(config, self.batched_env, self.splits, self.tokenizer, None, key)
                for key in keys
            ]
            rows = _stacked([each for each, _ in found])
            self.imitated = [set(levels) for _, levels in found]
            program = self.alone.imitation(self.model, tx, batch=config.imitation.batch)
            rates = jnp.float32(config.imitation.lr), jnp.float32(config.optim.max_grad_norm)

            def imitate(state, mine, frozen_params):
                key, rows = mine
                order = jax.random.fold_in(key, run_keys.IMITATION)
                state, metrics = program(
                    state.replace(frozen_params=frozen_params), rows, order, jnp.int32(steps), *rates
                )
                return state.replace(frozen_params=None), metrics["imitation/loss"]

            states, loss = self.seeds.each(imitate, donate=True)(states, (self.seeds.keys, rows), frozen_params)
            shown = " ".join(f"{value:.3f}" for value in np.asarray(loss))
            self.console.print(f"mean loss of imitation, seed by seed: {shown}", highlight=False)
        return states.params["policy"], frozen_params

    def play(self, name: str) -> Record:
        """Runs a variant from the common start to its end.

        Returns:
            config; seeds; iteration: 1 to the last; metrics by name, [iterations][S] (means over the minibatches of an
            iteration); environment_steps [iterations][S] of each iteration; validation: {iteration, success} with
            success [k][S]; start and end: {sampled, greedy}, outcomes [S][n]; alarms: [S] mappings of alarm name to
            iteration; levels: [S] results of `HeldOut.seen` for the test levels; baselines: success of random, optimal
            and null play on them, by name; seconds; machine.
        """
        config, began = self.comparison.variants[name], time.monotonic()
        for line in start.notes(config):
            self.console.print(f"{name}: {line}", highlight=False, markup=False, soft_wrap=True)
        with refusals():
            states, update = self._learner(config)
        record: Record = {"config": to_dict(config), "seeds": list(self.seeds.numbers), "iteration": []}
        rows: list[dict[str, Any]] = []
        validation: dict[str, list[Any]] = {"iteration": [], "success": []}
        horizons = [Horizon(config) for _ in self.seeds.numbers]
        learned = [set(levels) for levels in self.imitated]
        record["start"], _ = self._outcomes(states)
        every, last = config.train.validate_every or config.train.iterations, config.train.iterations
        for iteration in range(last + 1):
            if iteration % every == 0 or iteration == last:
                number, heat = config.train.validation_episodes, config.train.validation_temperature
                success, _ = self._success(states, self.held_out.validations, number, heat)
                validation["iteration"].append(iteration)
                validation["success"].append(success.mean(axis=1).tolist())
                self._tell(name, iteration, last, success.mean(axis=1), time.monotonic() - began)
            if iteration < last:
                states, row, levels = self._iterate(config, iteration, states, update, horizons)
                rows.append(row)
                for known, hashes in zip(learned, levels):
                    known.update(hexadecimal(hashes))
                record["iteration"].append(iteration + 1)
        record["end"], tested = self._outcomes(states)
        record |= {
            "metrics": {key: [_rounded(row[key]) for row in rows] for key in rows[0]},
            "validation": validation,
            "alarms": [_alarms(rows, validation, index) for index in range(len(self.seeds.numbers))],
            "levels": [self.held_out.seen(known, tested) for known in learned],
            "baselines": self._baselines,
            "seconds": time.monotonic() - began,
            "machine": machine(),
        }
        return record

    def _learner(self, config: Config) -> tuple[TrainState, Any]:
        """The initial states [S, ...] of a variant, and the program of its update."""
        tx, model = build.build_optimizer(config), self._model(config)
        reference = build.needs_reference(config)
        pretrained = self.pretrained.params if self.pretrained else None

        def begin(policy, key, shared):
            state = init_state(jax.random.fold_in(key, run_keys.INIT), model, tx, False, pretrained)
            state = state.replace(params={**state.params, "policy": policy}, frozen_params=None)
            return start.begin_learning(state, tx, reference=reference)

        states = self.seeds.each(begin)(self.policies, self.seeds.keys, None)
        program = self.alone.update(model, build.learner_config(config), tx, self.engine)

        def learn(state, mine, shared):
            (trajectory, key, greedy), (frozen_params, temperature, settings) = mine, shared
            state, metrics = program(
                state.replace(frozen_params=frozen_params), trajectory, temperature, key, settings, *greedy
            )
            return state.replace(frozen_params=None), metrics

        over_seeds = self.seeds.each(learn, donate=True)

        def update(states, trajectories, temperature, keys, settings, *greedy):
            frozen_params, mine = states.frozen_params, (trajectories, keys, greedy)
            return over_seeds(states.replace(frozen_params=None), mine, (frozen_params, temperature, settings))

        return states, update

    def _iterate(
        self, config: Config, iteration: int, states: TrainState, update: Any, horizons: list[Horizon]
    ) -> tuple[TrainState, dict[str, Any], np.ndarray]:
        """The states after an iteration, its metrics, and the hashes u32[S, Gr, 2] of the levels that were played."""
        group_size, split = config.rollout.group_size, self.splits.of(Split.TRAIN)
        turns = np.array([horizon.turns(iteration) for horizon in horizons], np.int32)

        def settings(episodes: int, temperature: float) -> RolloutSettings:
            shared = build.rollout_settings(
                config, self.batched_env, episodes, temperature, iteration=iteration, split=split
            )
            return shared.replace(horizon=turns)

        def keys(purpose: int) -> jax.Array:
            return jax.vmap(lambda key: run_keys.of_iteration(key, purpose, iteration))(self.seeds.keys)

        episodes, remax = self.ids.group.shape[0], config.algo.advantage.kind == "remax"
        inputs = IterationInputs(
            rollout_key=keys(run_keys.ROLLOUT),
            update_key=keys(run_keys.UPDATE),
            ids=jax.tree.map(lambda x: jnp.broadcast_to(x, (len(turns), *x.shape)), self.ids),
            rollout=settings(episodes, float(build.schedules(config)["temperature"](iteration))),
            greedy=settings(episodes // group_size, 0.0) if remax else None,
            update=build.update_settings(config, float(build.learning_rates(config)(iteration)), iteration),
        )
        rollout = self.rollouts[config.algo.dynamic_sampling]
        programs = IterationPrograms(rollout, update, self.greedy if remax else None, group_size)
        states, played, metrics = iterate(states.replace(frozen_params=self.frozen_params), inputs, programs)
        steps = played.stats.environment_steps
        if played.greedy_stats is not None:
            steps += played.greedy_stats.environment_steps
        row = {key: np.asarray(value) for key, value in jax.device_get(metrics).items() if value.ndim == 1}
        row |= {"environment_steps": np.asarray(steps), "rollout/rounds": np.asarray(played.stats.rounds)}
        row["rollout/horizon"] = turns
        # Groups kept by resampling are not an unbiased sample, so use metrics over all episodes of the policy.
        row |= {key: np.asarray(mean.value) for key, mean in jax.device_get(played.stats.measured).items()}
        for index, horizon in enumerate(horizons):
            horizon.observe({key: value[index] for key, value in row.items()})
        return states, row, np.asarray(played.trajectory.turn.state_hash[:, ::group_size, 0])

    def _single(self, policy: Any, _: None, shared: Any) -> tuple[jax.Array, jax.Array]:
        """Success bool[n] and level hashes u32[n, 2] of one seed's policy on the shared episodes."""
        frozen_params, key, ids, settings = shared
        trajectory = self.episode(_player(policy, frozen_params), key, ids, settings)[0]
        return trajectory.success, trajectory.turn.state_hash[:, 0]

    def _success(
        self, states: TrainState, eval_sets: Sequence[EvalSet], episodes: int, temperature: float
    ) -> tuple[np.ndarray, list[list[str]]]:
        """Success bool[S, n] on the first n levels of every task's eval set, the same for all seeds, and their ids."""
        policies = states.params["policy"]
        parts, levels = [], []
        for eval_set in eval_sets:
            number, settings = eval_set.number(episodes), eval_set.settings(temperature)
            found = []
            for first in range(0, number, eval_set.chunk):
                ids = build.evaluation_ids(first, eval_set.chunk, eval_set.task, eval_set.rows)
                found.append(self.evaluation(policies, None, (self.frozen_params, eval_set.key, ids, settings)))
            success, hashes = (np.concatenate([np.asarray(x) for x in each], axis=1) for each in zip(*found))
            parts.append(success[:, :number])
            levels.append(hexadecimal(hashes[0, :number]))
        return np.concatenate(parts, axis=1), levels

    def _outcomes(self, states: TrainState) -> tuple[dict[str, list[list[bool]]], list[list[str]]]:
        evaluation = self.config.evaluation
        outcomes: dict[str, list[list[bool]]] = {}
        levels: list[list[str]] = []
        for how, temperature in {"sampled": evaluation.temperature, "greedy": 0.0}.items():
            success, levels = self._success(states, self.held_out.eval_sets, evaluation.episodes, temperature)
            outcomes[how] = success.tolist()
        return outcomes, levels

    @functools.cached_property
    def _baselines(self) -> dict[str, float]:
        """Success of the reference policies on the held-out levels by name; empty if unknown."""
        known = self.held_out.baselines()
        if known is None:
            return {}
        null = {} if known.null is None else {"null": float(known.null.mean())}
        lines = {"random": float(known.random.mean()), optimal_label(known.optimal_is): float(known.optimal.mean())}
        return lines | null

    def _tell(self, name: str, iteration: int, last: int, success: np.ndarray, seconds: float) -> None:
        shown = " ".join(f"{rate:6.1%}" for rate in success)
        self.console.print(f"{name:<22} {iteration:>5}/{last}  {shown}  {seconds:7.0f} s", highlight=False)


def _player(policy: Any, frozen_params: Any) -> dict[str, Any]:
    """The parts of a state that a rollout reads."""
    return {"policy": policy} if frozen_params is None else {"policy": policy, "frozen": frozen_params}


def _stacked(parts: list[Any]) -> Any:
    """Stacks the seeds' rows [S, N, ...]; shorter ones are padded with empty rows, which imitation never samples."""
    most = max(jax.tree.leaves(part)[0].shape[0] for part in parts)

    def padded(x):
        return jnp.pad(x, [(0, most - x.shape[0])] + [(0, 0)] * (x.ndim - 1))

    return jax.tree.map(lambda *x: jnp.stack([padded(each) for each in x]), *parts)


def _alarms(rows: list[dict[str, Any]], validation: dict[str, list[Any]], index: int) -> dict[str, int]:
    """Alarms of one seed, with the iteration in which each was first raised."""
    of_seed: list[dict[str, Any]] = [
        {"iteration": number + 1, **{key: float(value[index]) for key, value in row.items()}}
        for number, row in enumerate(rows)
    ]
    for iteration, success in zip(validation["iteration"], validation["success"]):
        if iteration:
            of_seed[iteration - 1]["validation/success"] = success[index]
    found = (collapse.examine(alarm, of_seed) for alarm in collapse.ALARMS)
    return {finding.alarm.name: finding.raised[0] for finding in found if finding.raised}


def _rounded(values: np.ndarray) -> list[float | None]:
    """Values rounded to six significant digits; None for those that are not finite."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.astype(float)]
