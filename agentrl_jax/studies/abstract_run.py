"""The programs of a run, compiled from the shapes and placements of their inputs."""

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

from agentrl_jax.config import Config
from agentrl_jax.errors import BadValue, UserError
from agentrl_jax.evaluate.held_out import chunk_size
from agentrl_jax.learner import state
from agentrl_jax.learner.batch import Batch, make_batch
from agentrl_jax.learner.state import TrainState
from agentrl_jax.learner.trained_rows import TrainedRows
from agentrl_jax.models import decoder
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.models.published import PUBLISHED
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.parallel import hlo
from agentrl_jax.parallel.hlo_traffic import memory_bytes
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.envs.batched_env import shared_prefix_len
from agentrl_jax.rollout.recording import empty_trajectory
from agentrl_jax.rollout.trajectory import Hints, Trajectory
from agentrl_jax.setup import build, build_inputs, build_model, start
from agentrl_jax.setup.programs import Programs
from agentrl_jax.text.tokenizer import Tokenizer, load_small, padded
from agentrl_jax.train.iteration import IterationInputs, IterationPrograms, iterate


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
    accessed: int
    """Bytes read from a device's large memory and written to it, see `parallel.hlo_traffic`."""
    estimate: float | None
    """The compiler's own time estimate in seconds; None if it makes none."""
    operations: tuple[hlo.Operation, ...]
    """Collectives and copies, with the loops around them."""


def _model(config: Config, name: str | None) -> tuple[DecoderConfig, Tokenizer, str]:
    if name is not None:
        if name not in PUBLISHED:
            raise BadValue(
                f"model {name!r} is unknown; expected one of {', '.join(PUBLISHED)}", key="model", value=name
            )
        shape = PUBLISHED[name]
        return shape, padded(load_small(), shape.vocab_size), "the project's own"
    pretrained = build_model.load_model(config.model, weights=False)
    tokenizer = build_model.load_tokenizer(config.model, pretrained)
    return build_model.build_model(config, tokenizer, pretrained).decoder, tokenizer, "the model's"


class AbstractRun:
    """A run's programs with the shapes and placements of their inputs."""

    def __init__(self, config: Config, mesh: Mesh, model: str | None):
        if not config.tasks:
            raise UserError.of("tasks", [], "but a plan is one of rollouts and updates; name a task")
        self.config, self.mesh = config, mesh
        self.shape, tokenizer, self.tokenizer_source = _model(config, model)
        self.tokenizer = tokenizer
        build_model.check_divided(config.mesh, self.shape)
        self.batched_env = build.build_compiled_env(config, tokenizer)
        built = build_model.build_model(config, tokenizer, shared_prefix_len=shared_prefix_len(self.batched_env))
        computed = {name: getattr(built.decoder, name) for name in ("dtype", "cache_dtype", "attention")}
        self.model = dataclasses.replace(built, decoder=dataclasses.replace(self.shape, **computed))
        self.programs = Programs.of_run(config, mesh)
        self.engine = build_inputs.engine_config(
            config, tokenizer, group_size=config.rollout.group_size, slots=config.rollout.slots
        )
        self.episodes = sum(task.groups for task in config.tasks) * config.rollout.group_size
        self.tx = build_model.build_optimizer(config)
        self.state = self.state_of(self.model)

    def state_of(self, model: ActorCritic) -> TrainState:
        """Shapes of the training state with another decoder."""
        config = self.config
        frozen = jnp.bfloat16 if config.model.precision == "bfloat16" else jnp.float32

        def start(key):
            pretrained = decoder.init_params(key, model.decoder)
            pretrained = jax.tree.map(lambda x: x.astype(frozen), pretrained)
            return state.init_state(key, model, self.tx, build_model.kept_by(config), pretrained)

        return jax.eval_shape(start, jax.random.key(0))

    @functools.cached_property
    def trajectory(self) -> Trajectory:
        """Shapes of the episodes of a rollout."""
        env, engine = self.batched_env, self.engine
        ids = jax.eval_shape(lambda: build_inputs.training_ids(self.config))
        return jax.eval_shape(lambda ids: empty_trajectory(env, ids, engine.bounds, engine.max_response_tokens), ids)

    @functools.cached_property
    def hints(self) -> Hints | None:
        """Shapes of the hints that a teacher reads; None if it reads none."""
        found = start.plan_hints(self.config, self.batched_env, self.tokenizer)
        if found is None or self.config.algo.distillation.kind == "none":
            return None
        task = self.trajectory.ids.task
        return jax.eval_shape(lambda: found.write([None] * len(task), np.zeros(len(task), int)))

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
        learner = build_inputs.learner_config(config)
        settings = jax.eval_shape(lambda: build_inputs.update_settings(config, 1.0))
        temperature = jax.ShapeDtypeStruct((self.episodes,), jnp.float32)
        greedy = None
        if config.algo.advantage.has_greedy:
            greedy = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((len(x) // group_size, *x.shape[1:]), x.dtype), self.trajectory
            )

        def made(state, trajectory, temperature, settings, greedy, hints):
            arguments = state, trajectory, temperature, settings, self.model, learner, Shards(), None, greedy, hints
            return make_batch(*arguments)[:2]

        return jax.eval_shape(made, self.state, self.trajectory, temperature, settings, greedy, self.hints)

    def bytes_of(self, tree: Any) -> int:
        """Bytes of a part of the state on one device."""
        return bytes_each(tree, self.programs.placement(tree, self.model.decoder))

    def compile(self, report: Callable[[str], None]) -> dict[str, ProgramPlan]:
        """The programs of a run by name: rollout and update of an iteration, for ReMax baseline, and evaluation."""
        config, group_size = self.config, self.config.rollout.group_size
        rows = Spec(self.programs.rollout_rules.row_axes)
        single = build_inputs.engine_config(config, self.tokenizer, group_size=1, slots=0)
        playing, names = build_model.rollout_model(config, self.model), tuple(task.label for task in config.tasks)
        play = self.programs.rollout(
            *("rollout", playing, self.batched_env, self.engine),
            resampling=build_inputs.resampling(config),
            task_names=names,
        )
        play_greedy = self.programs.rollout("baseline", playing, self.batched_env, single)
        evaluate = self.programs.rollout("evaluation", self.model, self.batched_env, single)
        learner = build_inputs.learner_config(config, hint_at=int(self.batched_env.hint_at.min()))
        learn = self.programs.update(self.model, learner, self.tx, self.engine)
        plans: dict[str, ProgramPlan] = {}
        trajectories: list[Any] = []

        def compiled(name: str, program: Any, *arguments: Any) -> None:
            report(f"compiling the {name} for {self.mesh.size} devices")
            plans[name] = _compiled(program, *arguments)

        def rollout(params, *arguments):
            arguments = (read_by_rollout(params), *arguments)
            compiled("rollout", play, *arguments)
            trajectory, stats = jax.eval_shape(play, *arguments)
            trajectories.append(self._at(trajectory, rows))
            ids = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), trajectory.ids)  # a group's are taken from it
            return trajectories[0].replace(ids=ids), stats

        def greedy(params, key, ids, settings):
            arguments = (read_by_rollout(params), key, self._at(ids, rows), settings)
            compiled("baseline", play_greedy, *arguments)
            trajectory, stats = jax.eval_shape(play_greedy, *arguments)
            return self._at(trajectory, rows), stats

        def update(state, trajectory, temperature, *arguments):
            if self.hints is not None:
                greedy = arguments[2] if remax else None
                arguments = *arguments[:2], greedy, self._at(self.hints, rows)
            compiled("update", learn, state, trajectories[0], self._at(temperature, rows), *arguments)
            return state, {}

        def settings_of(episodes: int) -> Any:
            settings = jax.eval_shape(lambda: build_inputs.rollout_settings(config, self.batched_env, episodes, 1.0))
            return self._at(settings, Spec()).replace(temperature=self._at(settings.temperature, rows))

        remax = config.algo.advantage.has_greedy
        key = self._at(jax.eval_shape(lambda: jax.random.key(0)), Spec())
        inputs = IterationInputs(
            rollout_key=key,
            update_key=key,
            ids=self._at(jax.eval_shape(lambda: build_inputs.training_ids(config)), rows),
            rollout=settings_of(self.episodes),
            greedy=settings_of(self.episodes // group_size) if remax else None,
            update=self._at(jax.eval_shape(lambda: build_inputs.update_settings(config, 1.0)), Spec()),
        )
        placements = self.programs.placement(self.state, self.model.decoder)
        placed = jax.tree.map(_placed, self.state, placements)
        iterate(placed, inputs, IterationPrograms(rollout, update, greedy if remax else None, group_size))
        held_out = chunk_size(config, self.programs.replicas)
        ids = self._at(jax.eval_shape(lambda: build_inputs.evaluation_ids(np.arange(held_out), 0)), rows)
        compiled("evaluation", evaluate, read_by_rollout(placed.merged_params()), key, ids, settings_of(held_out))
        return plans

    def _at(self, tree: Any, spec: Spec) -> Any:
        sharding = NamedSharding(self.mesh, spec)
        return jax.tree.map(lambda x: _placed(x, sharding), tree)


def read_by_rollout(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters without those of a critic."""
    return {name: tree for name, tree in params.items() if name != "critic"}


def _placed(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _compiled(program: Any, *arguments: Any) -> ProgramPlan:
    began = time.monotonic()
    compiled = program.lower(*arguments).compile()
    text, memory, cost = compiled.as_text(), compiled.memory_analysis(), compiled.cost_analysis() or {}
    aliased = memory.alias_size_in_bytes
    return ProgramPlan(
        seconds=time.monotonic() - began,
        arguments=memory.argument_size_in_bytes + memory.output_size_in_bytes - aliased,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        flops=float(cost.get("flops", math.nan)),
        accessed=memory_bytes(text),
        estimate=cost.get("optimal_seconds"),
        operations=tuple(hlo.operations(text, (*hlo.COLLECTIVES, *hlo.HOST, "copy"))),
    )


def bytes_each(shapes: Any, placements: Any) -> int:
    """Bytes on one device of a tree of shapes with these shardings."""
    sizes = jax.tree.map(
        lambda x, place: math.prod(place.shard_shape(x.shape)) * np.dtype(x.dtype).itemsize, shapes, placements
    )
    return sum(jax.tree.leaves(sizes))
