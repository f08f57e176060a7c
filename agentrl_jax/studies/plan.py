"""Estimates memory and collectives of a run on any devices, from its own programs compiled ahead of time."""

import dataclasses
import math
from collections.abc import Callable

import jax
from jax.sharding import NamedSharding

from agentrl_jax.config import Config, validate
from agentrl_jax.models import actor_critic, decoder
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.engine_config import cache_length
from agentrl_jax.rollout.prefill import empty_cache
from agentrl_jax.setup import build_model
from agentrl_jax.studies.abstract_run import AbstractRun, ProgramPlan, bytes_each, read_by_rollout

TOKEN_LOOP = 2
"""Depth of the loops around the work for every token of a rollout: turns, tokens."""


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
    programs: dict[str, ProgramPlan]
    """Those of `AbstractRun.compile`."""

    @property
    def peaks(self) -> dict[str, int]:
        """Peak of each program: the state, both layouts of the parameters, cache and temporaries."""
        each = {name: one.arguments + one.temporaries + one.code for name, one in self.programs.items()}
        return {name: peak + (0 if name == "update" else self.learner_only) for name, peak in each.items()}

    @property
    def playing_peak(self) -> int:
        """The largest of the programs that play episodes."""
        return max(peak for name, peak in self.peaks.items() if name != "update")


def make_plan(
    config: Config,
    devices: list[jax.Device],
    model: str | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Plan:
    """Compiles the programs of a run for some devices, such as `topology.described_devices`.

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
    compiled = run.compile(report)
    programs, params, shape = run.programs, run.state.merged_params(), run.model.decoder
    policy = jax.eval_shape(lambda p: actor_critic.policy_decoder(p, run.model), params)
    cast = jax.eval_shape(lambda p: decoder.as_activations(p, shape), policy)
    rows = run.engine.slots or run.episodes // programs.replicas
    rollout_shape = build_model.rollout_model(config, run.model).decoder
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
        learner_only=run.bytes_of(run.state.replace(opt_state=())) - run.bytes_of(read_by_rollout(params)) + optimizer,
        cache=bytes_each(cache, jax.tree.map(lambda _, spec: NamedSharding(mesh, spec), cache, specs)),
        programs=compiled,
    )
