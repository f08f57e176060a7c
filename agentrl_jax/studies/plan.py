"""Estimates memory and collectives of a run on any devices, from its own programs compiled ahead of time."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.config import Config, validate
from agentrl_jax.learner import state
from agentrl_jax.learner.batch import Batch, make_batch
from agentrl_jax.learner.state import TrainState
from agentrl_jax.learner.trained_rows import TrainedRows
from agentrl_jax.models import actor_critic, decoder
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.models.published import PUBLISHED
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.parallel import hlo
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.engine_config import cache_length
from agentrl_jax.rollout.envs.batched_env import shared_prefix_len
from agentrl_jax.rollout.prefill import empty_cache
from agentrl_jax.rollout.recording import empty_trajectory
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.setup import build
from agentrl_jax.setup.programs import Programs
from agentrl_jax.text.tokenizer import Tokenizer, load_small, padded
from agentrl_jax.train.iteration import IterationInputs, IterationPrograms, iterate

TOKEN_LOOP = 2
"""Depth of the loops around the work for every token of a rollout: turns, tokens."""


@dataclasses.dataclass(frozen=True)
class ProgramPlan:
    """One compiled program on one device; sizes in bytes. Loops of unknown length count once in the last four."""

    seconds: float
    """Time to lower and compile it."""
    arguments: int
    """Inputs and outputs; memory shared by both counts once."""
    temporaries: int
    code: int
    flops: float
    accessed: float
    """Bytes read and written."""
    estimate: float | None
    """The compiler's own time estimate in seconds; None if it makes none."""
    operations: tuple[hlo.Operation, ...]
    """Collectives and copies, with the loops around them."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run needs on each device; sizes in bytes."""

    mesh: dict[str, int]
    tokenizer: str
    """The tokenizer that gives the lengths of prompts."""
    context: int
    """Positions of the longest context."""
    rows: int
    """Episodes that each rollout replica plays at a time."""
    parameters: int
    """Number of the model's parameters."""
    update_parameters: int
    rollout_parameters: int
    """A second copy, in the layout of the rollout, while a rollout runs."""
    optimizer: int
    """0 if it stays in the memory of the hosts."""
    learner_only: int
    """The state that a rollout does not read: optimizer, critic, reference."""
    cache: int
    """Keys and values of the rows, without the prefixes that they share."""
    rollout: ProgramPlan
    update: ProgramPlan

    @property
    def rollout_peak(self) -> int:
        """Peak during a rollout: the state, both layouts of the parameters, cache and temporaries."""
        return self.learner_only + self.rollout.arguments + self.rollout.temporaries + self.rollout.code

    @property
    def update_peak(self) -> int:
        """Peak during an update."""
        return self.update.arguments + self.update.temporaries + self.update.code


def make_plan(
    config: Config,
    devices: list[jax.Device],
    model: str | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Plan:
    """Compiles the rollout and the update of a run for some devices, such as `topology.described_devices`.

    `config.mesh` arranges the devices, `config.devices` is ignored. `model`, a name in `models.published.PUBLISHED`,
    replaces the configuration's model; its vocabulary is that of the model, and prompts have the lengths that the
    project's own tokenizer gives. `report` is called with each progress line.

    Raises:
        UserError: the configuration does not fit the devices.
        ValueError: the configuration does not fit the devices, or the model is unknown.
    """
    mesh = make_mesh(devices, **config.mesh.axes())
    config = config.replace(devices=mesh.size)
    validate(config)
    run = AbstractRun(config, mesh, model)
    rollout, update = run.compile(report)
    programs, params, shape = run.programs, run.state.merged_params(), run.model.decoder
    policy = jax.eval_shape(lambda p: actor_critic.policy_decoder(p, run.model), params)
    cast = jax.eval_shape(lambda p: decoder.as_activations(p, shape), policy)
    rows = run.engine.slots or run.episodes // programs.replicas
    rollout_shape = build.rollout_model(config, run.model).decoder
    cache = jax.eval_shape(lambda: empty_cache(rollout_shape, run.batched_env, programs.suited(run.engine), rows))
    specs = programs.cache_specs(cache, shape)
    optimizer = 0 if config.optim.offload else run.bytes_of(run.state.opt_state)
    return Plan(
        mesh={str(name): size for name, size in mesh.shape.items()},
        tokenizer=run.tokenizer_source,
        context=cache_length(run.batched_env, run.engine),
        rows=rows,
        parameters=sum(math.prod(x.shape) for x in jax.tree.leaves(policy)),
        update_parameters=run.bytes_of(params),
        rollout_parameters=bytes_each(cast, programs.placement(cast, run.shape, programs.rollout_rules)),
        optimizer=optimizer,
        learner_only=run.bytes_of(run.state.replace(opt_state=())) - run.bytes_of(_read_by_rollout(params)) + optimizer,
        cache=bytes_each(cache, jax.tree.map(lambda _, spec: NamedSharding(mesh, spec), cache, specs)),
        rollout=rollout,
        update=update,
    )


def _model(config: Config, name: str | None) -> tuple[DecoderConfig, Tokenizer, str]:
    if name is not None:
        if name not in PUBLISHED:
            raise ValueError(f"model {name!r} is unknown; expected one of {', '.join(PUBLISHED)}")
        shape = PUBLISHED[name]
        return shape, padded(load_small(), shape.vocab_size), "the project's own"
    pretrained = build.load_model(config.model, weights=False)
    tokenizer = build.load_tokenizer(config.model, pretrained)
    return build.build_model(config, tokenizer, pretrained).decoder, tokenizer, "the model's"


class AbstractRun:
    """A run's programs with the shapes and placements of their inputs."""

    def __init__(self, config: Config, mesh: Mesh, model: str | None):
        self.config, self.mesh = config, mesh
        self.shape, tokenizer, self.tokenizer_source = _model(config, model)
        build.check_divided(config.mesh, self.shape)
        self.batched_env = build.build_compiled_env(config, tokenizer)
        built = build.build_model(config, tokenizer, shared_prefix_len=shared_prefix_len(self.batched_env))
        computed = {name: getattr(built.decoder, name) for name in ("dtype", "cache_dtype", "attention")}
        self.model = dataclasses.replace(built, decoder=dataclasses.replace(self.shape, **computed))
        self.programs = Programs.of_run(config, mesh)
        self.engine = build.engine_config(
            config, tokenizer, group_size=config.rollout.group_size, slots=config.rollout.slots
        )
        self.episodes = sum(task.groups for task in config.tasks) * config.rollout.group_size
        self.tx = build.build_optimizer(config)
        self.state = self.state_of(self.model)

    def state_of(self, model: ActorCritic) -> TrainState:
        """Shapes of the training state with another decoder."""
        config = self.config
        frozen = jnp.bfloat16 if config.model.precision == "bfloat16" else jnp.float32

        def start(key):
            pretrained = decoder.init_params(key, model.decoder)
            pretrained = jax.tree.map(lambda x: x.astype(frozen), pretrained)
            return state.init_state(key, model, self.tx, build.needs_reference(config), pretrained)

        return jax.eval_shape(start, jax.random.key(0))

    @functools.cached_property
    def trajectory(self) -> Trajectory:
        """Shapes of the episodes of a rollout."""
        env, engine = self.batched_env, self.engine
        ids = jax.eval_shape(lambda: build.training_ids(self.config))
        return jax.eval_shape(lambda ids: empty_trajectory(env, ids, engine.max_turns, engine.max_response_tokens), ids)

    @property
    def batch(self) -> Batch:
        """Shapes of the rows of all devices in an update."""
        return self._made[0]

    @property
    def trained(self) -> int:
        """Number of these rows to train on."""
        return len(self._made[1].order)

    @functools.cached_property
    def _made(self) -> tuple[Batch, TrainedRows]:
        config, group_size = self.config, self.config.rollout.group_size
        learner, settings = build.learner_config(config), jax.eval_shape(lambda: build.update_settings(config, 1.0))
        temperature = jax.ShapeDtypeStruct((self.episodes,), jnp.float32)
        greedy = None
        if config.algo.advantage.kind == "remax":
            greedy = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((len(x) // group_size, *x.shape[1:]), x.dtype), self.trajectory
            )

        def made(state, trajectory, temperature, settings, greedy):
            arguments = state, trajectory, temperature, settings, self.model, learner, Shards(), None, greedy
            return make_batch(*arguments)[:2]

        return jax.eval_shape(made, self.state, self.trajectory, temperature, settings, greedy)

    def bytes_of(self, tree: Any) -> int:
        """Bytes of a part of the state on one device."""
        return bytes_each(tree, self.programs.placement(tree, self.model.decoder))

    def compile(self, report: Callable[[str], None]) -> tuple[ProgramPlan, ProgramPlan]:
        """Rollout and update of one iteration, compiled from the shapes of their inputs."""
        config, group_size = self.config, self.config.rollout.group_size
        rows = Spec(self.programs.rollout_rules.row_axes)
        play = self.programs.rollout("rollout", build.rollout_model(config, self.model), self.batched_env, self.engine)
        learn = self.programs.update(self.model, build.learner_config(config), self.tx, self.engine)
        plans: list[ProgramPlan] = []
        trajectories: list[Any] = []

        def rollout(params, *arguments):
            report(f"compiling the rollout for {self.mesh.size} devices")
            arguments = (_read_by_rollout(params), *arguments)
            plans.append(_compiled(play, *arguments))
            trajectory, stats = jax.eval_shape(play, *arguments)
            trajectories.append(self._at(trajectory, rows))
            ids = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), trajectory.ids)  # a group's are taken from it
            return trajectories[0].replace(ids=ids), stats

        def greedy(params, key, ids, settings):
            def of_groups(x):
                return jax.ShapeDtypeStruct((len(x) // group_size, *x.shape[1:]), x.dtype)

            return self._at(jax.tree.map(of_groups, trajectories[0]), rows), None

        def update(state, trajectory, temperature, *arguments):
            report(f"compiling the update for {self.mesh.size} devices")
            plans.append(_compiled(learn, state, trajectories[0], self._at(temperature, rows), *arguments))
            return state, {}

        settings = jax.eval_shape(
            lambda: build.rollout_settings(config, self.batched_env, self.episodes, config.rollout.temperature)
        )
        temperature = self._at(settings.temperature, rows)
        key = self._at(jax.eval_shape(lambda: jax.random.key(0)), Spec())
        inputs = IterationInputs(
            rollout_key=key,
            update_key=key,
            ids=self._at(jax.eval_shape(lambda: build.training_ids(config)), rows),
            rollout=self._at(settings, Spec()).replace(temperature=temperature),
            greedy=None,
            update=self._at(jax.eval_shape(lambda: build.update_settings(config, 1.0)), Spec()),
        )
        remax = config.algo.advantage.kind == "remax"
        placements = self.programs.placement(self.state, self.model.decoder)
        placed = jax.tree.map(_placed, self.state, placements)
        iterate(placed, inputs, IterationPrograms(rollout, update, greedy if remax else None, group_size))
        return plans[0], plans[1]

    def _at(self, tree: Any, spec: Spec) -> Any:
        sharding = NamedSharding(self.mesh, spec)
        return jax.tree.map(lambda x: _placed(x, sharding), tree)


def _read_by_rollout(params: dict[str, Any]) -> dict[str, Any]:
    return {name: tree for name, tree in params.items() if name != "critic"}


def _placed(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _compiled(program: Any, *arguments: Any) -> ProgramPlan:
    began = time.monotonic()
    compiled = program.lower(*arguments).compile()
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    aliased = memory.alias_size_in_bytes
    return ProgramPlan(
        seconds=time.monotonic() - began,
        arguments=memory.argument_size_in_bytes + memory.output_size_in_bytes - aliased,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        flops=float(cost.get("flops", math.nan)),
        accessed=float(cost.get("bytes accessed", math.nan)),
        estimate=cost.get("optimal_seconds"),
        operations=tuple(hlo.operations(compiled.as_text(), (*hlo.COLLECTIVES, *hlo.HOST, "copy"))),
    )


def bytes_each(shapes: Any, placements: Any) -> int:
    """Bytes on one device of a tree of shapes with these shardings."""
    sizes = jax.tree.map(
        lambda x, place: math.prod(place.shard_shape(x.shape)) * np.dtype(x.dtype).itemsize, shapes, placements
    )
    return sum(jax.tree.leaves(sizes))
