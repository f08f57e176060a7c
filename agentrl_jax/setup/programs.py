"""The compiled programs of a run: a fixed set, each compiled once and counted."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.algos.groups import STD_FLOOR, center_and_std
from agentrl_jax.algos.optimizers import Optimizer
from agentrl_jax.config import Config
from agentrl_jax.config.own import OwnMetric
from agentrl_jax.config.stages import DpoStage
from agentrl_jax.errors import BadValue
from agentrl_jax.learner import own
from agentrl_jax.learner import prompt_information as dependence
from agentrl_jax.learner.measures import groups_of, measure
from agentrl_jax.learner.prompt_information import PromptInformationConfig
from agentrl_jax.learner.recorded import recorded_scores
from agentrl_jax.learner.settings import LearnerConfig
from agentrl_jax.learner.state import TrainState
from agentrl_jax.learner.supervised import data_steps, imitation_steps
from agentrl_jax.learner.update import update
from agentrl_jax.models import decoder
from agentrl_jax.models.actor_critic import ActorCritic, logprobs, policy_decoder
from agentrl_jax.models.row_attention import refusal
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.parallel import layout
from agentrl_jax.parallel.fsdp import Gather
from agentrl_jax.parallel.layout import Rules
from agentrl_jax.parallel.mesh import FSDP, SEQUENCE, TENSOR
from agentrl_jax.parallel.shards import Shards, maybe_shard_map
from agentrl_jax.rollout.contexts import Context
from agentrl_jax.rollout.engine import rollout
from agentrl_jax.rollout.engine_config import EngineConfig
from agentrl_jax.rollout.envs.mixed_env import TaskEnv
from agentrl_jax.rollout.hints import HintedEnv
from agentrl_jax.rollout.resampling import ONE_ROUND, Resampling, until_informative
from agentrl_jax.rollout.returns import part_values, reward_rule, total_returns
from agentrl_jax.rollout.trajectory import EpisodeIds, RolloutSettings, RolloutStats, Trajectory
from agentrl_jax.setup import build
from agentrl_jax.setup.jit_once import jit_once
from agentrl_jax.setup.memory import Measured

RolloutProgram = Callable[[dict[str, Any], jax.Array, EpisodeIds, RolloutSettings], tuple[Trajectory, RolloutStats]]


_HOST_MEMORY = "pinned_host"
_HINTS = 5
"""Number of the hints among the arguments of `update` behind the state."""


class Programs:
    """Makes programs and keeps them by name in `compiled`, so that the number of compilations can be reported.

    A run has two layouts. The training state is sharded for the update. A rollout reshards the policy, in the dtype
    that it computes in, once before its loop. Each of the rollout `replicas` plays its share of the episodes on
    separate devices.
    """

    def __init__(self, mesh: Mesh, *, rollout_rules: Rules = layout.ROLLOUT, offload: bool = False):
        """Starts with no programs, for the devices of `mesh`; `offload` keeps the optimizer's state on the hosts."""
        self.mesh, self.offload = mesh, offload
        self.rollout_rules = rollout_rules
        self.replicas = math.prod(mesh.shape[axis] for axis in rollout_rules.row_axes)
        rows, sequence = layout.UPDATE.row_axes, (SEQUENCE,) if mesh.shape[SEQUENCE] > 1 else ()
        self.shards = Shards(math.prod(mesh.shape[axis] for axis in rows), rows, sequence)
        self.compiled: dict[str, Any] = {}
        self.note: Callable[[str], None] = lambda line: None
        """Shows a line before a program is compiled."""
        self._before: dict[str, int] = {}

    @classmethod
    def of_run(cls, config: Config, mesh: Mesh) -> "Programs":
        """No programs yet, for a run on the devices of `mesh`."""
        return cls(mesh, rollout_rules=build.ROLLOUT_RULES[config.mesh.rollout], offload=config.optim.offload)

    def count(self) -> int:
        """Number of programs compiled for this run so far; a second shape of the same program counts again."""
        sizes = ((program._cache_size(), self._before[name]) for name, program in self.compiled.items())
        return sum(max(now - before, 0) for now, before in sizes)

    def placement(self, tree: Any, shape: DecoderConfig, rules: Rules = layout.UPDATE) -> Any:
        """The sharding of every leaf of a state, of parameters or of their shapes; by default that of the update."""
        if self.mesh.size == 1:
            found = jax.tree.map(lambda _: SingleDeviceSharding(self.mesh.devices.item()), tree)
        else:
            found = layout.shardings(tree, self.mesh, rules, head_dim=shape.head_dim)
        if self.offload and isinstance(found, TrainState):
            on_host = jax.tree.map(lambda sharding: sharding.with_memory_kind(_HOST_MEMORY), found.opt_state)
            found = found.replace(opt_state=on_host)
        return found

    def parameter(self, shape: DecoderConfig, path: str, array_shape: tuple[int, ...]) -> Sharding:
        """The sharding of one decoder parameter during the update, see `weights.stacked.Placement`."""
        tree: Any = jax.ShapeDtypeStruct(array_shape, jnp.float32)
        for name in reversed(path.split("/")):
            tree = {name: tree}
        return jax.tree.leaves(self.placement(tree, shape))[0]

    def rollout(
        self,
        name: str,
        model: ActorCritic,
        batched_env: TaskEnv,
        config: EngineConfig,
        *,
        resampling: Resampling = ONE_ROUND,
        task_names: tuple[str, ...] = (),
    ) -> RolloutProgram:
        """(params, key, ids, settings) -> (Trajectory, RolloutStats); every replica plays its share of the episodes.

        `params` comes from `TrainState.merged_params`. With several rounds, each replica resamples groups whose
        returns (computed as in the learner), or each part of them, are all equal, in at most so many rounds;
        which groups are kept then depends on the number of replicas. The counters then also hold the metrics of
        all episodes played, also by task if `task_names` has several, see `played_metrics`.

        Raises:
            ValueError: host environments on a mesh where a replica has several devices, or with several rounds.
        """
        if batched_env.on_host and resampling.rounds > 1:
            raise BadValue.of("algo.dynamic_sampling", resampling.rounds, "but host environments play one round; use 1")
        if batched_env.on_host and self.replicas < self.mesh.size:
            raise BadValue(
                f"host environments need one device a replica, but a mesh {dict(self.mesh.shape)} has {self.replicas} "
                "replicas; use 1 for its tensor axis, and rows for the rollout's layout",
                key="mesh",
                value=dict(self.mesh.shape),
            )
        rows, config = self.rollout_rules.row_axes, self.suited(config)
        constrain_sharding = self._constrain_cache(model.decoder)

        def play(policy, key, ids, groups, settings):
            env = batched_env if settings.hints is None else HintedEnv(batched_env, settings.hints)

            def once(ids):
                return rollout(policy, model.decoder, env, config, key, ids, settings, constrain_sharding)

            rule = reward_rule(settings, resampling.parts)

            def groups_in(trajectory):
                return groups_of(trajectory, total_returns(trajectory, rule), config.group_size)

            def informative(trajectory):
                if not resampling.separately:
                    return center_and_std(*groups_in(trajectory))[1] > STD_FLOOR
                of_parts = [jnp.sum(part.value, axis=1) for part in part_values(trajectory, rule).values()]
                stds = [center_and_std(*groups_of(trajectory, x, config.group_size))[1] for x in of_parts]
                return jnp.max(jnp.stack(stds), axis=0) > STD_FLOOR

            def measured(ids):
                trajectory, stats = once(ids)
                means = measure(trajectory, groups_in(trajectory), task_names, rule)
                return trajectory, stats.replace(measured=means)

            if resampling.rounds == 1:
                trajectory, stats = once(ids)
            else:
                trajectory, stats = until_informative(
                    measured, informative, ids, group_size=config.group_size, rounds=resampling.rounds, stride=groups
                )
            return trajectory, jax.tree.map(lambda x: x[None], stats)

        settings: Any = {field.name: Spec() for field in dataclasses.fields(RolloutSettings)}
        settings |= {"temperature": Spec(rows), "hints": Spec(rows)}
        specs = (Spec(), Spec(), Spec(rows), Spec(), RolloutSettings(**settings))
        shared = maybe_shard_map(play, self.mesh, specs, Spec(rows), axes=rows, replicated_results=False)

        def program(params, key, ids, settings):
            policy = decoder.as_activations(policy_decoder(params, model), model.decoder)
            groups = jnp.max(ids.group) + 1
            return shared(self._reshard(policy, model.decoder, self.rollout_rules), key, ids, groups, settings)

        made_of = None if batched_env.on_host else (model, batched_env, config, resampling, task_names)
        return self._keep(name, program, made_of)

    def update(
        self,
        model: ActorCritic,
        config: LearnerConfig,
        tx: Optimizer,
        engine: EngineConfig | None = None,
    ) -> Any:
        """(state, trajectory, temperature, key, settings, greedy for ReMax, hints) -> (state, metrics).

        Donates the state. Trajectory, temperature and the hints of a teacher are sharded by episode, and every device
        keeps the rows of its episodes. With `algo.mismatch` replay the learner replays the rollout and needs its
        `engine`.

        Raises:
            ValueError: replay, but learner and rollout compute in different shapes.
        """
        if config.mismatch.kind == "replay" and (self.mesh.shape[TENSOR] > 1 or self.replicas != self.shards.count):
            raise BadValue(
                f"mismatch is replay on a mesh {dict(self.mesh.shape)}, whose {self.replicas} replicas and "
                f"{self.shards.count} learners compute in different shapes; use 1 for sequence and tensor, and the "
                "layout rows",
                key="mismatch",
                value="replay",
            )
        return self._learning(
            *("update", update, model),
            by_row=2,
            also_by_row=_HINTS,
            config=config,
            tx=tx,
            engine=engine and self.suited(engine),
        )

    def suited(self, config: EngineConfig) -> EngineConfig:
        """The configuration of a rollout with the cache that suits these devices."""
        return dataclasses.replace(config, skips_blocks=self.mesh.devices.flat[0].platform == "cpu")

    def mutual_information(self, model: ActorCritic, config: PromptInformationConfig) -> Any:
        """(params, reference or None, trajectory, temperature, key) -> metrics; each replica scores its own prompts.

        `params` comes from `TrainState.merged_params`, before the update that learns from the trajectory.
        """
        rows = self.rollout_rules.row_axes
        specs = (Spec(), Spec(rows), Spec())
        score = functools.partial(dependence.score, model=model.decoder)
        shared = maybe_shard_map(score, self.mesh, specs, Spec(rows), axes=rows, replicated_results=False)
        scorer = dependence.pad_prompts(shared, self.replicas)

        def program(params, reference, trajectory, temperature, key):
            def resharded(policy):
                merged = decoder.as_activations(policy_decoder({**params, "policy": policy}, model), model.decoder)
                return self._reshard(merged, model.decoder, self.rollout_rules)

            before = None if reference is None else resharded(reference)
            return dependence.measure(
                resharded(params["policy"]), before, trajectory, temperature, key, config=config, scorer=scorer
            )

        return self._keep("mutual_information", program, (model, config))

    def recorded(self, model: ActorCritic, episodes: int, *, context: Context, context_tokens: int) -> Any:
        """(params, trajectory, temperature) -> `RecordedScores` of the first episodes of the trajectory.

        `params` comes from `TrainState.merged_params`, before the update that learns from the trajectory. Each replica
        scores its share of the episodes, the last one repeated where they cannot be divided.
        """
        rows, plain = self.rollout_rules.row_axes, ActorCritic(decoder=model.decoder, critic="none")
        score = functools.partial(recorded_scores, model=plain, context=context, context_tokens=context_tokens)
        shared = maybe_shard_map(
            score, self.mesh, (Spec(), Spec(rows), Spec(rows)), Spec(rows), axes=rows, replicated_results=False
        )
        padded = -(-episodes // self.replicas) * self.replicas

        def program(params, trajectory, temperature):
            policy = decoder.as_activations(policy_decoder(params, model), model.decoder)
            number = jnp.minimum(jnp.arange(padded), episodes - 1)
            chosen = jax.tree.map(lambda x: x[number], (trajectory, temperature))
            found = shared(self._reshard(policy, model.decoder, self.rollout_rules), *chosen)
            return jax.tree.map(lambda x: x[:episodes], found)

        return self._keep("recorded", program, (model, episodes, context, context_tokens))

    def metrics(self, sections: Mapping[str, OwnMetric]) -> Any:
        """(trajectory, numbers by metric) -> the metrics of the user, own/NAME; 0 where nothing was counted."""
        functions = {name: (own.METRICS[part.kind], part.untraced()) for name, part in sections.items()}

        def program(trajectory, numbers):
            found = {name: of(trajectory, part, numbers[name]) for name, (of, part) in functions.items()}
            return {
                f"own/{name}": jnp.where(count == 0, 0.0, total / jnp.where(count == 0, 1, count))
                for name, (total, count) in found.items()
            }

        return self._keep("own_metrics", program, tuple((name, part) for name, (_, part) in functions.items()))

    def imitation(self, model: ActorCritic, tx: Optimizer, *, batch: int):
        """(state, examples, their token counts, key, steps, lr, decay_steps, max_grad_norm) -> (state, metrics).

        Donates the state. The examples are sharded by row, see `shard_rows`.
        """
        return self._learning("imitation", imitation_steps, model, by_row=1, batch=batch, tx=tx)

    def data_steps(self, model: ActorCritic, tx: Optimizer, *, batch: int, pairs: DpoStage | None):
        """(state, examples, weights, lr, steps, max_grad_norm) -> (state, metrics), see `supervised.data_steps`.

        Donates the state. The examples are sharded by row, see `shard_rows`.
        """
        model = dataclasses.replace(model, shared_prefix_len=0)  # rows of data begin as they like
        return self._learning("data_steps", data_steps, model, by_row=1, batch=batch, pairs=pairs, tx=tx)

    def row_logprobs(self, model: ActorCritic) -> Any:
        """(params, examples) -> f32[N], the log-probability of the trained tokens of each row.

        `params` comes from `TrainState.merged_params`. N is a multiple of the rollout's replicas, which share the rows.
        """
        rows, plain = self.rollout_rules.row_axes, ActorCritic(decoder=model.decoder, critic="none")

        def score(policy, found):
            arrays = found.tokens, found.position, found.temperature, found.mask, found.segment
            return jnp.sum(jnp.where(found.mask, logprobs({"policy": policy}, plain, *arrays), 0.0), axis=1)

        shared = maybe_shard_map(
            score, self.mesh, (Spec(), Spec(rows)), Spec(rows), axes=rows, replicated_results=False
        )

        def program(params, found):
            policy = decoder.as_activations(policy_decoder(params, model), model.decoder)
            return shared(self._reshard(policy, model.decoder, self.rollout_rules), found)

        return self._keep("row_logprobs", program, (model,))

    def shard_rows(self, tree: Any) -> Any:
        """Divides rows, leaves [N, ...], in contiguous blocks over the devices of the update.

        Rows of zeros fill the last blocks. All processes give the same rows, which no device has to hold together.
        """
        if self.shards.count == 1:
            return tree
        sharding = NamedSharding(self.mesh, Spec(self.shards.axes))

        def put(x):
            missing = -len(x) % self.shards.count
            padded = np.concatenate([x, np.zeros((missing, *x.shape[1:]), x.dtype)])
            return jax.make_array_from_callback(padded.shape, sharding, lambda block: padded[block])

        return jax.tree.map(put, tree)

    def _learning(
        self,
        name: str,
        function: Callable[..., Any],
        model: ActorCritic,
        *,
        by_row: int = 0,
        also_by_row: int | None = None,
        **options: Any,
    ) -> Any:
        """A program that updates the state and keeps its sharding.

        Its first `by_row` arguments behind the state are sharded by row, and the one of number `also_by_row`.
        """
        kind, shape = self.mesh.devices.flat[0].platform, model.decoder
        if refused := refusal(shape.attention, dtype=shape.dtype, head_dim=shape.head_dim, platform=kind):
            raise BadValue(refused, key="model.attention", value=shape.attention)
        # XLA for CPUs aborts on a bfloat16 `psum` inside a `jax.shard_map` that leaves an axis to the compiler: its
        # pass all-reduce-promotion fails ("Invalid binary instruction opcode copy").
        if kind == "cpu" and shape.dtype == "bfloat16" and self.mesh.shape[TENSOR] > 1:
            raise BadValue(
                f"mesh.tensor is {self.mesh.shape[TENSOR]} with activations in bfloat16, which XLA cannot compile for "
                "CPUs; set model.precision to float32 or mesh.tensor to 1, or use accelerators",
                key="mesh.tensor",
                value=self.mesh.shape[TENSOR],
            )
        if self.mesh.shape[FSDP] > 1 or self.shards.sequence:  # it also keeps loops with collectives in order
            model = dataclasses.replace(model, gather=Gather(shape.embed_dim, shape.head_dim))
        if self.shards.sequence:
            model = dataclasses.replace(model, sequence_axis=SEQUENCE)
        axes = (*self.shards.axes, *self.shards.sequence)
        per_device = functools.partial(function, model=model, shards=self.shards, **options)

        def program(state, *arguments):
            shardings = self.placement(state, model.decoder)
            specs = layout.specs_over(shardings, axes) if self.mesh.size > 1 else None
            of_rows = Spec(self.shards.axes) if self.shards.count > 1 else Spec()
            numbers = {*range(by_row), also_by_row}
            shared = maybe_shard_map(
                lambda state, arguments: per_device(state, *arguments),
                self.mesh,
                (specs, tuple(of_rows if number in numbers else Spec() for number in range(len(arguments)))),
                (specs, Spec()),
                axes=axes,
                replicated_results=True,
            )
            state, metrics = shared(state, arguments)
            return self._reshard(state, model.decoder, layout.UPDATE), metrics

        return self._keep(name, program, (function, model, by_row, options), donate_argnums=(0,))

    def _reshard(self, tree: Any, shape: DecoderConfig, rules: Rules) -> Any:
        if self.mesh.size == 1:
            return tree
        return jax.lax.with_sharding_constraint(tree, self.placement(tree, shape, rules))

    def cache_spec(self, shape: DecoderConfig) -> Spec:
        """How the keys and values [B, K, S, Dh] of a replica are sharded over the devices that compute its heads."""
        counts = (1, shape.num_kv_heads, 1, 1)
        return self.rollout_rules.spec((None, "kv_heads", None, None), counts, self.mesh, "the cache")

    def cache_specs(self, cache: Any, shape: DecoderConfig) -> Any:
        """`cache_spec` for the leaves of a cache; lengths are not sharded."""
        spec = self.cache_spec(shape)
        return jax.tree.map(lambda x: spec if x.ndim == 4 else Spec(), cache)

    def _constrain_cache(self, shape: DecoderConfig) -> Callable[[Any], Any]:
        if not self.cache_spec(shape):
            return lambda state: state

        def constrain(state):
            specs = self.cache_specs(state.cache, shape)
            return state.replace(cache=jax.lax.with_sharding_constraint(state.cache, specs))

        return constrain

    def _keep(self, name: str, function: Callable[..., Any], made_of: Any, **options: Any) -> Any:
        """The compiled function; one that another run in this process made of the same parts serves again."""
        if made_of is not None:
            made_of = (name, self.mesh, self.rollout_rules, self.offload, made_of)
        program = self.compiled[name] = jit_once(function, made_of, **options)
        self._before[name] = program._cache_size()
        return Measured(name, program, lambda line: self.note(line))


def total_stats(stats: RolloutStats) -> dict[str, int]:
    """Returns the counters summed over devices, on the host, but of `rounds` the most; a sum may exceed an int32."""
    counters = {name: value for name, value in vars(stats).items() if name not in ("measured", "rounds")}
    halves = jax.device_get({name: (jnp.sum(x >> 16), jnp.sum(x & 0xFFFF)) for name, x in counters.items()})
    totals = {name: (int(high) << 16) + int(low) for name, (high, low) in halves.items()}
    return totals | {"rounds": int(jnp.max(stats.rounds))}


def played_metrics(stats: RolloutStats) -> dict[str, Any]:
    """Metrics of all episodes that a rollout of several rounds played, kept or not; empty for one round.

    They replace the metrics of the same names that the update computes from its trajectory.
    """
    measured = jax.device_get(jax.tree.map(jnp.sum, stats.measured))
    return {name: float(mean.value) for name, mean in measured.items()}


def host_metrics(metrics: Any) -> dict[str, Any]:
    """Copies metrics to the host in one transfer, as Python numbers and lists."""
    return {name: value.tolist() for name, value in jax.device_get(metrics).items()}
