"""The phases of a run as separate programs with its sizes, which are compiled from shapes or run.

A rollout and an update are loops around four steps: a prefill of observations, one decode step, a forward pass over
recorded rows, and the gradient of one microbatch, with the optimizer's step. Here each is a program without a loop of
unknown length, so what the compiler counts for it (operations, bytes) is what one call costs.

The compiler counts the body of a loop once, however often it runs: a forward pass of 4 layers costs as much as one of 2
by its account. `unrolled` therefore writes out every loop of known length. Because a stack of equal layers costs the
same for every further layer, `costs.CostModel` compiles few layers and rows only, and computes the rest.

Shapes: as in `rollout.engine` and `learner.batch`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.extend import core
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.learner import state as states
from agentrl_jax.learner.trained_rows import trained_rows
from agentrl_jax.learner.update import minibatch_gradient
from agentrl_jax.models import actor_critic, cached_decoder
from agentrl_jax.models.decoder import Remat
from agentrl_jax.models.matmul import Transposed
from agentrl_jax.models.quantized import Quantized
from agentrl_jax.parallel.mesh import DATA, FSDP, MESH_AXES, SEQUENCE, TENSOR
from agentrl_jax.parallel.shards import Shards, maybe_shard_map
from agentrl_jax.rollout.engine import Engine, LoopState
from agentrl_jax.setup import build_inputs, build_model
from agentrl_jax.setup.programs import Programs
from agentrl_jax.studies.abstract_run import AbstractRun

PREFILL, DECODE, SCORE, UPDATE, OPTIMIZER = "prefill", "decode", "score", "update", "optimizer"
PHASES = (PREFILL, DECODE, SCORE, UPDATE, OPTIMIZER)


@dataclasses.dataclass(frozen=True)
class Phase:
    """One program, and the shapes and placements of its inputs.

    Attributes:
        program: a pure function.
        arguments: `jax.ShapeDtypeStruct` trees, to compile it ahead of time; replace them by arrays to run it.
        donated: positions of the arguments whose memory the result takes over.
        tokens: tokens that one call computes, padding included; of an optimizer step 0.
        carried: position of the argument that the result replaces in a loop; None if it is no step of a loop.
    """

    program: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...]
    tokens: int
    carried: int | None = None

    def lower(self, *, unroll: bool = False) -> jax.stages.Lowered:
        """The program for the placements of its arguments; with `unroll`, loops of known length are written out.

        The memory layout of a step's arguments is then left to the compiler, as that of a loop's state is: otherwise it
        would copy the whole cache at the start and at the end.
        """
        program = unrolled(self.program, *self.arguments) if unroll else self.program
        if not unroll or self.carried is None:
            return jax.jit(program, donate_argnums=self.donated).lower(*self.arguments)
        chosen = jax.tree.map(lambda x: Format(Layout.AUTO, x.sharding), self.arguments)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), self.arguments)
        options = {"in_shardings": chosen, "out_shardings": chosen[self.carried]}
        return jax.jit(program, donate_argnums=self.donated, **options).lower(*shapes)


class PhaseBuilder:
    """Makes the phases of a run for the devices that compute the same rows together: one replica, or one learner.

    Several devices share the matrices as the axis `tensor` of a run does. Sharding over `fsdp` and `sequence` is left
    out, because it adds collectives but no operations.
    """

    def __init__(
        self, run: AbstractRun, devices: list[jax.Device], *, layers: int | None = None, remat: Remat | None = None
    ):
        """Takes everything from `run` but its mesh and what is given: the depth of its decoder, `model.remat`."""
        self.run, self.config = run, run.config
        shape = run.model.decoder
        if layers is not None:
            shape = dataclasses.replace(shape, num_layers=layers, windows=())
        self.model = dataclasses.replace(run.model, decoder=shape, remat=remat or run.model.remat)
        self.rollout_shape = build_model.rollout_model(run.config, self.model).decoder
        self.batch = run.batch
        self.mesh = simple_mesh(devices, tensor=len(devices))
        self.programs = Programs(self.mesh)
        self.state = run.state_of(self.model)
        self.policy = jax.eval_shape(lambda p: actor_critic.policy_decoder(p, self.model), self.state.merged_params())

    def rollout(self, name: str, rows: int) -> Phase:
        """The prefill of a turn's observation, or one decode step, of `rows` slots.

        Observations are read at their full width at once, also where `rollout.prefill_chunk` is set. On a CPU the cost
        of a decode step depends on how many positions of the cache are filled; compiled from shapes it is that of a
        full cache.
        """
        engine_of, arguments = self.engine(rows)
        state = jax.eval_shape(lambda *x: engine_of(*x).start(), *arguments)
        prefixes = jax.eval_shape(lambda *x: engine_of(*x).prefixes, *arguments)
        prepared = jax.eval_shape(lambda p: cached_decoder.prepare_for_decode(p, self.rollout_shape), self.policy)

        def program(prepared, prefixes, key, ids, settings, state):
            engine = engine_of(None, key, ids, settings)
            engine.params, engine.prefixes = prepared, prefixes
            if name == DECODE:
                return engine.decode(state)
            return engine.prefill(state, jnp.ones(rows, bool))

        placed = (
            self._placed(prepared, self._prepared_specs(prepared)),
            self._placed(prefixes, self._prefix_specs(prefixes)),
            *self._replicated(arguments[1:]),
        )
        tokens = rows * (1 if name == DECODE else state.message.tokens.shape[1])
        arguments = (*placed, self._placed(state, self._loop_specs(state)))
        return dataclasses.replace(self._phase(program, arguments, (5,), tokens), carried=5)

    def engine(self, rows: int) -> tuple[Callable[..., Engine], tuple[Any, ...]]:
        """(params, key, ids, settings) -> the engine of `rows` slots, and the shapes of these arguments.

        Groups have one episode each, so that any number of rows is possible. Without parameters (None) the engine
        has placeholders; what it computes from them is dropped if nothing reads it.
        """
        run, shape = self.run, self.rollout_shape
        config = dataclasses.replace(self.programs.suited(run.engine), slots=rows, group_size=1, chunk=0)
        ids = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((rows,), x.dtype),
            jax.eval_shape(lambda: build_inputs.training_ids(run.config)),
        )
        settings = jax.eval_shape(lambda: build_inputs.rollout_settings(run.config, run.batched_env, rows, 1.0))
        key = jax.eval_shape(lambda: jax.random.key(0))

        def engine_of(params, key, ids, settings):
            if params is None:
                params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.policy)
            return Engine(params, shape, run.batched_env, config, key, ids, settings)

        return engine_of, (self.policy, key, ids, settings)

    def score(self, rows: int) -> Phase:
        """The forward pass of `rows` recorded rows with the log-probabilities of their sampled tokens."""
        batch = self._batch(rows)

        def program(params, tokens, position, temperature, mask):
            return actor_critic.logprobs(params, self.model, tokens, position, temperature, mask)

        params = self.state.merged_params()
        recorded = (batch.tokens, batch.position, batch.temperature, batch.mask)
        placed = (self._placed(params, self._state_specs(params)), *self._replicated(recorded))
        return self._phase(program, placed, (), batch.tokens.size)

    def update(self, rows: int) -> Phase:
        """Loss and gradient of one microbatch of `rows` rows, without packing."""
        batch = self._batch(rows)
        config = build_inputs.learner_config(self.config).replace(grad_accum_steps=1, packing=False, length_buckets=1)
        settings = jax.eval_shape(lambda: build_inputs.update_settings(self.config, 1.0))

        def program(state, batch, settings):
            trained = trained_rows(batch.mask, batch.position, rows, Shards())
            return minibatch_gradient(state, batch, trained, trained.order, settings, self.model, config, Shards())

        # The gradient does not read the optimizer's state.
        state = self.state.replace(opt_state=None)
        placed = (self._placed(state, self._state_specs(state)), *self._replicated((batch, settings)))
        return self._phase(program, placed, (), batch.tokens.size)

    def optimizer(self) -> Phase:
        """One step of the optimizer from a gradient; its state is on the device, also with `optim.offload`."""
        scalar = jax.ShapeDtypeStruct((), jnp.float32)

        def program(state, grads, loss, tokens):
            rates: dict[str, Any] = {"lr": 1e-6, "critic_lr": 1e-6, "max_grad_norm": 1.0}
            return states.apply_gradients(state, self.run.tx, loss, grads, tokens=tokens, **rates)

        state, grads = (self._placed(x, self._state_specs(x)) for x in (self.state, self.state.params))
        return self._phase(program, (state, grads, *self._replicated((scalar, scalar))), (0,), 0)

    def phase(self, name: str, rows: int) -> Phase:
        """The phase of that name, one of `PHASES`, for `rows` rows."""
        if name in (PREFILL, DECODE):
            return self.rollout(name, rows)
        return self.optimizer() if name == OPTIMIZER else {SCORE: self.score, UPDATE: self.update}[name](rows)

    def _batch(self, rows: int) -> Any:
        """Shapes of a batch of `rows` rows, as the update of the run makes it."""
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), self.batch)

    def _phase(self, program: Callable[..., Any], arguments: Any, donated: tuple[int, ...], tokens: int) -> Phase:
        # All axes of one device are mapped, so that only `tensor` is left to the compiler, as in a run.
        mapped = maybe_shard_map(program, self.mesh, Spec(), Spec(), axes=(), replicated_results=False)
        return Phase(mapped, tuple(arguments), donated, tokens)

    def _placed(self, tree: Any, specs: Any) -> Any:
        if self.mesh.size == 1:
            specs = jax.tree.map(lambda _: Spec(), tree)
        return jax.tree.map(
            lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(self.mesh, spec)), tree, specs
        )

    def _replicated(self, tree: Any) -> Any:
        return self._placed(tree, jax.tree.map(lambda _: Spec(), tree))

    def _state_specs(self, tree: Any) -> Any:
        if self.mesh.size == 1:
            return None
        return jax.tree.map(lambda sharding: sharding.spec, self.programs.placement(tree, self.model.decoder))

    def _prepared_specs(self, prepared: Any) -> Any:
        """Those of `prepare_for_decode`, which stores some matrices transposed."""
        if self.mesh.size == 1:
            return None

        def plain(x):
            if isinstance(x, Quantized):
                return x.values
            return jax.ShapeDtypeStruct(x.matrix.shape[::-1], x.matrix.dtype) if isinstance(x, Transposed) else x

        def like(spec: Any, x: Any) -> Any:
            if isinstance(x, Quantized):
                of_scale = (axis if size > 1 else None for axis, size in zip((*spec, None, None), x.scale.shape))
                return x.replace(values=spec, scale=Spec(*of_scale))
            turned: Any = _reversed(spec)
            return Transposed(turned) if isinstance(x, Transposed) else spec

        table = {name: x for name, x in prepared.items() if name == "transposed_embedding"}
        rest = {name: x for name, x in prepared.items() if name not in table}
        plains = jax.tree.map(plain, rest, is_leaf=_is_matrix)
        placed = self.programs.placement(plains, self.model.decoder, self.programs.rollout_rules)
        specs = jax.tree.map(lambda sharding, x: like(sharding.spec, x), placed, rest, is_leaf=_is_matrix)
        return specs | {name: _reversed(specs["embedding"]) for name in table}

    def _prefix_specs(self, prefixes: Any) -> Any:
        heads = tuple(self.programs.cache_spec(self.model.decoder))[1:2]
        return jax.tree.map(lambda x: Spec(*heads) if x.ndim == 3 else Spec(), prefixes)

    def _loop_specs(self, state: LoopState) -> Any:
        specs = jax.tree.map(lambda _: Spec(), state)
        return specs.replace(cache=self.programs.cache_specs(state.cache, self.model.decoder))


def simple_mesh(devices: list[jax.Device], *, fsdp: int = 1, sequence: int = 1, tensor: int = 1) -> Mesh:
    """As `parallel.mesh.make_mesh`, in the order of the list, without regard for which chips are neighbors."""
    sizes = {DATA: len(devices) // (fsdp * sequence * tensor), FSDP: fsdp, SEQUENCE: sequence, TENSOR: tensor}
    grid = np.asarray(devices).reshape([sizes[axis] for axis in MESH_AXES])
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def unrolled(program: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """A program with every loop of known length written out; `arguments` give the shapes."""
    closed, out = jax.make_jaxpr(program, return_shape=True)(*arguments)
    flat = core.jaxpr_as_fun(_unrolled(closed))
    tree = jax.tree.structure(out)
    return lambda *x: jax.tree.unflatten(tree, flat(*jax.tree.leaves(x)))


def _unrolled(value: Any) -> Any:
    # JAX 0.12 has one class for both, whose `jaxpr` is itself.
    if isinstance(value, core.ClosedJaxpr) and value.jaxpr is not value:
        return value.replace(jaxpr=_unrolled(value.jaxpr))
    if isinstance(value, core.Jaxpr):
        return value.replace(eqns=[equation.replace(params=_parameters(equation)) for equation in value.eqns])
    if type(value) in (tuple, list):
        return type(value)(_unrolled(x) for x in value)
    return value


def _parameters(equation: core.JaxprEqn) -> dict[str, Any]:
    inner = {name: _unrolled(value) for name, value in equation.params.items()}
    return inner | ({"unroll": inner["length"]} if equation.primitive.name == "scan" else {})


def _is_matrix(x: Any) -> bool:
    return isinstance(x, Transposed | Quantized)


def _reversed(spec: Spec) -> Spec:
    return Spec(*(*spec, None, None)[1::-1])
