"""The variants of a comparison: what they share, and how a variant runs with all its seeds.

Dimensions: `S` seeds, the first axis of everything that differs by seed; `n` held-out levels.
"""

import dataclasses
import functools
import hashlib
import itertools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt32

from agentrl_jax.algos import collapse
from agentrl_jax.algos.optimizers import Optimizer
from agentrl_jax.config import Config, to_dict
from agentrl_jax.config.comparison import Comparison
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.evaluate.eval_set import EvalSet
from agentrl_jax.evaluate.held_out import HeldOut
from agentrl_jax.evaluate.summary import machine
from agentrl_jax.learner.state import TrainState, init_state
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.engine_config import EngineConfig
from agentrl_jax.rollout.envs.batched_env import shared_prefix_len
from agentrl_jax.rollout.envs.level_splits import level_splits
from agentrl_jax.rollout.resampling import ONE_ROUND, Resampling
from agentrl_jax.rollout.trajectory import hexadecimal
from agentrl_jax.setup import build, build_inputs, build_model, run_keys, start
from agentrl_jax.setup.demonstrations import check_imitable
from agentrl_jax.setup.own_episodes import check_episode_functions
from agentrl_jax.setup.programs import Programs
from agentrl_jax.studies.imitation import SeedImitation
from agentrl_jax.studies.seeds import Seeds, rollout_params
from agentrl_jax.terminal import Terminal
from agentrl_jax.train import guards
from agentrl_jax.train.horizon import Horizon
from agentrl_jax.train.iteration import IterationInputs, IterationPrograms, iterate
from envs_jax.budget import optimal_label
from envs_jax.splits import Split

Record = dict[str, Any]
"""Results of a variant, as stored in its file, see `Variants.run`."""


class Variants:
    """What variants share: the environment, each seed's start, and the programs that do not depend on the rule."""

    def __init__(self, comparison: Comparison, console: Terminal):
        self.comparison, self.console = comparison, console
        self.config = config = comparison.shared
        devices = jax.devices()
        if comparison.devices > len(devices):
            raise UserError.of("devices", comparison.devices, f"but there are {len(devices)}")
        devices = devices[: comparison.devices or None]
        self.seeds = Seeds(config.seed, comparison.seeds, devices)
        self.programs = Programs(make_mesh(1))
        pretrained = build_model.load_model(config.model, self.programs.parameter)
        self.pretrained, self.pretrained_params = pretrained, pretrained.params if pretrained else None
        self.tokenizer = build_model.load_tokenizer(config.model, pretrained)
        self.batched_env = build.build_compiled_env(config, self.tokenizer)
        self.model = dataclasses.replace(self._model(config), critic="none")
        self.engine = build_inputs.engine_config(
            config, self.tokenizer, group_size=config.rollout.group_size, slots=config.rollout.slots
        )
        build.check_positions(
            pretrained.config if pretrained else None,
            self.batched_env,
            self.engine,
            bootstrap=any(variant.algo.advantage.bootstrap_truncated for variant in comparison.variants.values()),
        )
        for variant in comparison.variants.values():
            check_episode_functions(variant, self.batched_env.info_keys)
        if config.imitation.levels:
            check_imitable(self.batched_env, config.prompt.max_response_tokens, config.imitation)
        self.ids = build_inputs.training_ids(config)
        single = build_inputs.engine_config(config, self.tokenizer, group_size=1, slots=0)
        resampled = {build_inputs.resampling(variant) for variant in comparison.variants.values()}
        self.rollouts = {each: self._rollout(self.engine, each) for each in resampled}
        self.greedy = self._rollout(single)
        self.evaluation = self.programs.rollout("evaluation", self.model, self.batched_env, single)
        self.evaluate_seeds = self.seeds.each(self._evaluate_seed)
        self.splits = level_splits(self.batched_env)
        build.check_trainable(config, self.splits)
        self.held_out = HeldOut.of_run(config, self.batched_env, self.splits, self.evaluation)
        self.imitated: list[set[str]] = [set() for _ in self.seeds.numbers]
        with jax.default_device(devices[0]):
            self.policies, self.frozen_params = self._begin()

    def _model(self, config: Config) -> ActorCritic:
        prefix = shared_prefix_len(self.batched_env)
        return build_model.build_model(config, self.tokenizer, self.pretrained, shared_prefix_len=prefix)

    def _rollout(self, engine: EngineConfig, resampling: Resampling = ONE_ROUND) -> Any:
        names = tuple(task.label for task in self.config.tasks)
        program = self.programs.rollout(
            f"rollout {resampling.rounds}",
            build_model.rollout_model(self.config, self.model),
            self.batched_env,
            engine,
            resampling=resampling,
            task_names=names,
        )

        return self.seeds.rollout(program)

    def _fresh_state(self, key: jax.Array, model: ActorCritic, tx: Optimizer) -> TrainState:
        return init_state(jax.random.fold_in(key, run_keys.INIT), model, tx, pretrained=self.pretrained_params)

    def _begin(self) -> tuple[Any, Any]:
        """Initial policies [S, ...] of every variant, and their frozen parameters."""
        config, tx = self.config, build_model.build_optimizer(self.config)
        frozen_params = jax.jit(lambda key: self._fresh_state(key, self.model, tx).frozen_params)(self.seeds.keys[0])

        def begin(key, per_seed, shared):
            return self._fresh_state(key, self.model, tx).replace(frozen_params=None)

        states = self.seeds.each(begin)(self.seeds.keys, None, None)
        if not config.imitation.levels or not config.imitation.steps:
            return states.params["policy"], frozen_params
        imitation = SeedImitation(config, self.seeds, self.batched_env, self.splits, self.tokenizer, self._note)
        self.imitated = imitation.levels
        states = imitation.run(states, frozen_params, self.programs, self.model, tx)
        return states.params["policy"], frozen_params

    def _note(self, line: str) -> None:
        self.console.print(line)

    def run(self, name: str) -> Record:
        """Runs a variant from the common start to its end.

        Returns:
            config; seeds; iteration: 1 to the last; metrics by name, [iterations][S] (means over the minibatches of an
            iteration); environment_steps [iterations][S] of each iteration; validation: {iteration, success} with
            success [k][S]; start and end: {sampled, greedy}, outcomes [S][n]; used: {mean_turns, mean_tokens}, [S], of
            an episode sampled at the end; test_levels: digest of the n levels;
            alarms: [S] mappings of alarm name to iteration; levels: [S] results of `HeldOut.seen` for the test levels;
            baselines: success of random, optimal and null play on them, by name; seconds: [iterations], of all seeds
            together, the first with compilation; machine.
        """
        # What variants share is computed before the clock starts: it would count for the first one only.
        shared = {"start": self.start, "baselines": self._baselines, "test_levels": self.test_levels}
        config, began = self.comparison.variants[name], time.monotonic()
        for line in start.notes(config):
            self._note(f"{name}: {line}")
        with refusals():
            states, update = self._learner(config)
        rows: list[dict[str, Any]] = []
        seconds: list[float] = []
        validation: dict[str, list[Any]] = {"iteration": [], "success": []}
        horizons = [Horizon(config.algo.horizon, config.prompt.max_turns) for _ in self.seeds.numbers]
        learned = [set(levels) for levels in self.imitated]
        train, last = config.train, config.train.iterations
        every = train.validate_every or last
        record: Record = {"config": to_dict(config), "seeds": list(self.seeds.numbers)} | shared
        record["iteration"] = list(range(1, last + 1))
        for iteration in range(last + 1):
            if iteration % every == 0 or iteration == last:
                number, temperature = train.validation_episodes, train.validation_temperature
                policies = states.evaluated["policy"]
                played = self._play(policies, self.held_out.validations, number, temperature)[0]
                means, validated = played.mean(axis=1), played.shape[1]
                validation["iteration"].append(iteration)
                validation["success"].append(means.tolist())
                shown = " ".join(f"{mean:6.1%}" for mean in means)
                line = f"{name:<22} {iteration:>5}/{last}  {shown}  {time.monotonic() - began:7.0f} s"
                self._note(line)
            if iteration < last:
                started = time.monotonic()
                states, row, levels = self._iterate(config, iteration, states, update, horizons)
                seconds.append(time.monotonic() - started)
                rows.append(row)
                for index, seed in enumerate(self.seeds.numbers):
                    of_seed = {key: value[index] for key, value in row.items()}
                    where = f"this is seed {seed} of {name}, iteration {iteration + 1}"
                    guards.check_logprobs(config, of_seed, functools.partial(str, where))
                for known, hashes in zip(learned, levels):
                    known.update(hexadecimal(hashes))
        record["end"], record["used"], tested = self._outcomes(states.evaluated["policy"])
        return record | {
            "metrics": {key: [_rounded(row[key]) for row in rows] for key in rows[0]},
            "validation": validation,
            "alarms": [_alarms(rows, validation, validated, index) for index in range(len(self.seeds.numbers))],
            "levels": [self.held_out.seen(known, tested) for known in learned],
            "seconds": seconds,
            "machine": machine(),
        }

    def _learner(self, config: Config) -> tuple[TrainState, Any]:
        """The initial states [S, ...] of a variant, and its `IterationPrograms.update`."""
        tx, model = build_model.build_optimizer(config), self._model(config)
        kept = build_model.kept_by(config)

        def begin(policy, key, shared):
            state = self._fresh_state(key, model, tx)
            state = state.replace(params={**state.params, "policy": policy}, frozen_params=None)
            return start.begin_learning(state, tx, kept)

        states = self.seeds.each(begin)(self.policies, self.seeds.keys, None)
        program = self.programs.update(model, build_inputs.learner_config(config), tx, self.engine)
        return states, self.seeds.update(program)

    def _iterate(
        self, config: Config, iteration: int, states: TrainState, update: Any, horizons: list[Horizon]
    ) -> tuple[TrainState, dict[str, Any], UInt32[np.ndarray, "S groups 2"]]:
        """The states after an iteration, its metrics, and the hashes of the levels that were played."""
        group_size, split = config.rollout.group_size, self.splits.of(Split.TRAIN)
        turns = np.array([horizon.turns(iteration) for horizon in horizons], np.int32)

        settings = functools.partial(
            build_inputs.rollout_settings, config, self.batched_env, iteration=iteration, split=split
        )

        def keys(purpose: int) -> jax.Array:
            return jax.vmap(lambda key: run_keys.of_iteration(key, purpose, iteration))(self.seeds.keys)

        episodes, remax = self.ids.group.shape[0], config.algo.advantage.has_greedy
        temperature = build_inputs.training_temperature(config, iteration)
        inputs = IterationInputs(
            rollout_key=keys(run_keys.ROLLOUT),
            update_key=keys(run_keys.UPDATE),
            ids=jax.tree.map(lambda x: jnp.broadcast_to(x, (len(turns), *x.shape)), self.ids),
            rollout=settings(episodes, temperature).replace(horizon=turns),
            greedy=settings(episodes // group_size, 0.0).replace(horizon=turns) if remax else None,
            update=build_inputs.update_settings(
                config, float(build_inputs.learning_rates(config)(iteration)), iteration
            ),
        )
        rollout = self.rollouts[build_inputs.resampling(config)]
        programs = IterationPrograms(rollout, update, self.greedy if remax else None, group_size)
        states, played, metrics = iterate(states.replace(frozen_params=self.frozen_params), inputs, programs)
        steps = played.stats.environment_steps
        if played.greedy_stats is not None:
            steps += played.greedy_stats.environment_steps
        counters = ("rounds", "episodes", "failed")
        row = {key: np.asarray(value) for key, value in jax.device_get(metrics).items() if value.ndim == 1}
        row |= {"environment_steps": np.asarray(steps)}
        row |= {f"rollout/{name}": np.asarray(getattr(played.stats, name)) for name in counters}
        row["rollout/horizon"] = turns
        # Groups kept by resampling are not an unbiased sample, so use metrics over all episodes of the policy.
        row |= {key: np.asarray(mean.value) for key, mean in jax.device_get(played.stats.measured).items()}
        for index, horizon in enumerate(horizons):
            horizon.observe({key: value[index] for key, value in row.items()})
        return states, row, np.asarray(played.trajectory.turn.state_hash[:, ::group_size, 0])

    def _evaluate_seed(
        self, policy: Any, _: None, shared: Any
    ) -> tuple[
        Bool[Array, " episodes"], Bool[Array, " episodes"], Int[Array, "episodes 2"], UInt32[Array, "episodes 2"]
    ]:
        """Success, failure, (turns, sampled tokens) and level hashes of one seed's policy on the shared episodes."""
        frozen_params, key, ids, settings = shared
        trajectory = self.evaluation(rollout_params(policy, frozen_params), key, ids, settings)[0]
        used = jnp.stack([trajectory.num_turns, trajectory.response.length.sum(axis=1)], axis=1)
        return trajectory.success, trajectory.failed, used, trajectory.turn.state_hash[:, 0]

    def _play(
        self, policies: Any, eval_sets: Sequence[EvalSet], episodes: int, temperature: float
    ) -> tuple[Bool[np.ndarray, "S n"], Int[np.ndarray, "S n 2"], list[list[str]]]:
        """Success, and turns and sampled tokens, on the first levels of every task's eval set, and the levels' ids.

        All seeds play the same levels.
        """
        parts, parts_used, levels = [], [], []
        for eval_set in eval_sets:
            number, settings = eval_set.number(episodes), eval_set.settings_at(temperature)
            found = []
            for first in range(0, number, eval_set.chunk):
                ids = eval_set.ids(first, eval_set.chunk, number)
                shared = self.frozen_params, eval_set.key, ids, settings
                found.append(self.evaluate_seeds(policies, None, shared))
            success, failed, used, hashes = (
                np.concatenate([np.asarray(x) for x in each], axis=1) for each in zip(*found)
            )
            if failed[:, :number].any():
                name = self.config.tasks[eval_set.task].label
                raise UserError.at(name, "no level could be generated for a held-out episode; use larger levels")
            parts.append(success[:, :number])
            parts_used.append(used[:, :number])
            levels.append(hexadecimal(hashes[0, :number]))
        return np.concatenate(parts, axis=1), np.concatenate(parts_used, axis=1), levels

    @functools.cached_property
    def _at_start(self) -> tuple[dict[str, list[list[bool]]], dict[str, list[float]], list[list[str]]]:
        return self._outcomes(self.policies)

    @property
    def start(self) -> dict[str, list[list[bool]]]:
        """Outcomes of the policies that all variants start from."""
        return self._at_start[0]

    @property
    def test_levels(self) -> str:
        """SHA-256 of the ids of the held-out levels."""
        return hashlib.sha256("".join(itertools.chain(*self._at_start[-1])).encode()).hexdigest()

    def _outcomes(self, policies: Any) -> tuple[dict[str, list[list[bool]]], dict[str, list[float]], list[list[str]]]:
        """Success sampled and greedy, mean turns and tokens of a sampled episode, and the ids of the levels."""
        evaluation, eval_sets = self.config.evaluation, self.held_out.eval_sets
        sampled, used, levels = self._play(policies, eval_sets, evaluation.episodes, evaluation.temperature)
        greedy = self._play(policies, eval_sets, evaluation.episodes, 0.0)[0]
        turns, tokens = used.mean(axis=1).T.tolist()
        return (
            {"sampled": sampled.tolist(), "greedy": greedy.tolist()},
            {"mean_turns": turns, "mean_tokens": tokens},
            levels,
        )

    @functools.cached_property
    def _baselines(self) -> dict[str, float]:
        """Success of the reference policies on the held-out levels by name; empty if unknown."""
        known = self.held_out.baselines()
        if known is None:
            return {}
        found = {"random": known.random, optimal_label(known.optimal_is): known.optimal, "null": known.null}
        return {name: float(success.mean()) for name, success in found.items() if success is not None}


def _alarms(rows: list[dict[str, Any]], validation: dict[str, list[Any]], episodes: int, index: int) -> dict[str, int]:
    """Alarms of one seed, with the iteration in which each was first raised; `episodes` are those of a validation."""
    of_seed: list[dict[str, Any]] = [
        {"iteration": number, **{key: float(value[index]) for key, value in row.items()}}
        for number, row in enumerate(rows, start=1)
    ]
    for iteration, success in zip(validation["iteration"], validation["success"]):
        if iteration:
            of_seed[iteration - 1] |= {"validation/success": success[index], "validation/episodes": episodes}
    found = (collapse.examine(alarm, of_seed) for alarm in collapse.ALARMS)
    return {finding.alarm.name: finding.raised[0] for finding in found if finding.raised}


def _rounded(values: np.ndarray) -> list[float | None]:
    """Values rounded to six significant digits; None for those that are not finite."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.astype(float)]
