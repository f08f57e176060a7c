"""Estimates memory and collectives of a run on any devices, from its own programs compiled ahead of time."""

import dataclasses
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
from agentrl_jax.models import actor_critic, decoder
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.models.published import PUBLISHED
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.parallel import hlo
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.engine_config import cache_length
from agentrl_jax.rollout.envs.batched_env import CompiledEnv, shared_prefix_len
from agentrl_jax.setup import build
from agentrl_jax.setup.programs import Programs
from agentrl_jax.text.tokenizer import Tokenizer, load_small, padded
from agentrl_jax.train.iteration import IterationInputs, IterationPrograms, iterate

TOKEN_LOOP = 2
"""Depth of the loops around the work for every token of a rollout: turns, tokens."""


@dataclasses.dataclass(frozen=True)
class ProgramPlan:
    """One compiled program on one device.

    Attributes:
        seconds: time to lower and compile it.
        arguments: bytes of inputs and outputs; memory shared by both counts once.
        temporaries: bytes of temporary buffers.
        code: bytes of the program.
        flops: operations counted by the compiler; loops of unknown length count once.
        accessed: bytes read and written, counted likewise.
        estimate: the compiler's own time estimate in seconds, counted likewise; None if it makes none.
        operations: collectives and copies, with the loops around them.
    """

    seconds: float
    arguments: int
    temporaries: int
    code: int
    flops: float
    accessed: float
    estimate: float | None
    operations: tuple[hlo.Operation, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run needs on each device, in bytes.

    Attributes:
        mesh: devices by axis.
        tokenizer: tokenizer that gives the lengths of prompts.
        context: positions of the KV cache.
        rows: episodes that each rollout replica plays at a time.
        parameters: number of the model's parameters.
        update_parameters: parameters in the layout of the update (f32 if trained).
        rollout_parameters: parameters in the layout of the rollout, kept beside the first while a rollout runs.
        optimizer: optimizer state.
        beside: the state that a rollout does not read: optimizer, critic, reference.
        cache: keys and values.
        rollout: the rollout program.
        update: the update program.
    """

    mesh: dict[str, int]
    tokenizer: str
    context: int
    rows: int
    parameters: int
    update_parameters: int
    rollout_parameters: int
    optimizer: int
    beside: int
    cache: int
    rollout: ProgramPlan
    update: ProgramPlan

    @property
    def rollout_peak(self) -> int:
        """Peak bytes during a rollout: the state, both layouts of the parameters, cache and temporaries."""
        return self.beside + self.rollout.arguments + self.rollout.temporaries + self.rollout.code

    @property
    def update_peak(self) -> int:
        """Peak bytes during an update."""
        return self.update.arguments + self.update.temporaries + self.update.code


def make_plan(
    config: Config,
    devices: list[jax.Device],
    model: str | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Plan:
    """Compiles the rollout and the update of a run for some devices.

    Args:
        config: the run; `mesh` arranges the devices, `devices` is ignored.
        devices: from `topology.described_devices`.
        model: name in `models.published.PUBLISHED`, used instead of the configuration's model; its vocabulary is that
            of the model, and prompts have the lengths that the project's own tokenizer gives.
        report: called with each progress line.

    Raises:
        UserError: the configuration does not fit the devices.
        ValueError: the configuration does not fit the devices, or the model is unknown.
    """
    mesh = make_mesh(devices, fsdp=config.mesh.fsdp, tensor=config.mesh.tensor)
    config = config.replace(devices=mesh.size)
    validate(config)
    shape, tokenizer, source = _model(config, model)
    batched_env = build.build_compiled_env(config, tokenizer)
    whole = build.build_model(config, tokenizer, shared_prefix_len=shared_prefix_len(batched_env))
    whole = dataclasses.replace(
        whole, decoder=dataclasses.replace(shape, dtype=whole.decoder.dtype, cache_dtype=whole.decoder.cache_dtype)
    )
    programs = Programs(mesh, rollout_rules=build.ROLLOUT_RULES[config.mesh.rollout])
    made = _Parts(config, mesh, programs, whole, batched_env, tokenizer)

    rollout, update = made.iteration(report)
    policy = jax.eval_shape(lambda p: actor_critic.policy_decoder(p, whole), made.state.merged_params())
    cast = jax.eval_shape(lambda p: decoder.as_activations(p, whole.decoder), policy)
    rows = made.engine.slots or made.episodes // programs.replicas
    length = cache_length(batched_env, made.engine)
    cache = jax.eval_shape(lambda: decoder.init_cache(whole.decoder, rows, length))
    heads = programs.cache_spec(whole.decoder)
    return Plan(
        mesh={str(name): size for name, size in mesh.shape.items()},
        tokenizer=source,
        context=length,
        rows=rows,
        parameters=sum(math.prod(x.shape) for x in jax.tree.leaves(policy)),
        update_parameters=made.bytes_of(made.state.merged_params()),
        rollout_parameters=_bytes_each(cast, programs.placement(cast, shape, programs.rollout_rules)),
        optimizer=made.bytes_of(made.state.opt_state),
        beside=made.bytes_of(made.state) - made.bytes_of(made.policy()),
        cache=_bytes_each(cache, jax.tree.map(lambda _: NamedSharding(mesh, heads), cache)),
        rollout=rollout,
        update=update,
    )


def _model(config: Config, name: str | None) -> tuple[DecoderConfig, Tokenizer, str]:
    if name is not None:
        if name not in PUBLISHED:
            raise ValueError(f"model {name!r} is unknown; expected one of {', '.join(PUBLISHED)}")
        shape = PUBLISHED[name]
        return shape, padded(load_small(), shape.vocab_size), "the project's own"
    pretrained = build.load_model(config.model)
    tokenizer = build.load_tokenizer(config.model, pretrained)
    return build.build_model(config, tokenizer, pretrained).decoder, tokenizer, "the model's"


class _Parts:
    """A run's programs with the shapes and placements of their inputs."""

    def __init__(
        self,
        config: Config,
        mesh: Mesh,
        programs: Programs,
        model: ActorCritic,
        batched_env: CompiledEnv,
        tokenizer: Tokenizer,
    ):
        self.config, self.mesh, self.programs, self.model, self.batched_env = config, mesh, programs, model, batched_env
        self.engine = build.engine_config(
            config, tokenizer, group_size=config.rollout.group_size, slots=config.rollout.slots
        )
        self.episodes = sum(task.groups for task in config.tasks) * config.rollout.group_size
        self.tx = build.build_optimizer(config)
        frozen = jnp.bfloat16 if config.model.precision == "bfloat16" else jnp.float32

        def start(key):
            pretrained = decoder.init_params(key, model.decoder)
            pretrained = jax.tree.map(lambda x: x.astype(frozen), pretrained)
            return state.init_state(key, model, self.tx, build.needs_reference(config), pretrained)

        self.state = jax.eval_shape(start, jax.random.key(0))

    def policy(self) -> dict[str, Any]:
        """The part of the state that a rollout reads."""
        return {name: tree for name, tree in self.state.merged_params().items() if name != "critic"}

    def bytes_of(self, tree: Any) -> int:
        """Bytes of a part of the state on one device."""
        return _bytes_each(tree, self.programs.placement(tree, self.model.decoder))

    def iteration(self, report: Callable[[str], None]) -> tuple[ProgramPlan, ProgramPlan]:
        """Rollout and update of one iteration, compiled from the shapes of their inputs."""
        config, group_size = self.config, self.config.rollout.group_size
        rows = Spec(self.programs.rollout_rules.row_axes)
        play = self.programs.rollout("rollout", self.model, self.batched_env, self.engine)
        learn = self.programs.update(self.model, build.learner_config(config), self.tx, self.engine)
        found: list[ProgramPlan] = []
        shapes: list[Any] = []

        def rollout(params, *arguments):
            report(f"compiling the rollout for {self.mesh.size} devices")
            arguments = ({name: tree for name, tree in params.items() if name != "critic"}, *arguments)
            found.append(_compiled(play, *arguments))
            trajectory, stats = jax.eval_shape(play, *arguments)
            shapes.append(self._at(trajectory, rows))
            ids = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), trajectory.ids)  # a group's are taken from it
            return shapes[0].replace(ids=ids), stats

        def greedy(params, key, ids, settings):
            def of_groups(x):
                return jax.ShapeDtypeStruct((len(x) // group_size, *x.shape[1:]), x.dtype)

            return self._at(jax.tree.map(of_groups, shapes[0]), rows), None

        def update(state, trajectory, temperature, *arguments):
            report(f"compiling the update for {self.mesh.size} devices")
            found.append(_compiled(learn, state, shapes[0], self._at(temperature, Spec()), *arguments))
            return state, {}

        settings = jax.eval_shape(
            lambda: build.rollout_settings(config, self.batched_env, self.episodes, config.rollout.temperature)
        )
        temperature = self._at(settings.temperature, rows)
        inputs = IterationInputs(
            rollout_key=self._key(),
            update_key=self._key(),
            ids=self._at(jax.eval_shape(lambda: build.training_ids(config)), rows),
            rollout=self._at(settings, Spec()).replace(temperature=temperature),
            greedy=None,
            update=self._at(jax.eval_shape(lambda: build.update_settings(config, 1.0)), Spec()),
        )
        remax = config.algo.advantage.kind == "remax"
        iterate(
            self._placed(self.state), inputs, IterationPrograms(rollout, update, greedy if remax else None, group_size)
        )
        return found[0], found[1]

    def _key(self) -> Any:
        return self._at(jax.eval_shape(lambda: jax.random.key(0)), Spec())

    def _placed(self, tree: Any) -> Any:
        places = self.programs.placement(tree, self.model.decoder)
        return jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree, places)

    def _at(self, tree: Any, spec: Spec) -> Any:
        place = NamedSharding(self.mesh, spec)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree)


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


def _bytes_each(shapes: Any, places: Any) -> int:
    """Bytes of a tree on one device."""
    sizes = jax.tree.map(
        lambda x, place: math.prod(place.shard_shape(x.shape)) * np.dtype(x.dtype).itemsize, shapes, places
    )
    return sum(jax.tree.leaves(sizes))
