"""Ranks meshes and batch sizes of a run for some devices by the estimated time of an iteration.

The time of a phase is that of what limits it: operations, traffic to memory, or traffic between devices, each at the
chip's peak rate (a roofline). It is an estimate: no chip reaches its peak, but every decode step is that of a full
cache. So comparisons are worth more than values. Nothing overlaps between phases, episodes play all turns with the
longest responses, and the time of environments is not counted.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

from agentrl_jax.config import Config
from agentrl_jax.config.schema import MeshConfig
from agentrl_jax.errors import UserError
from agentrl_jax.parallel.mesh import count_slices, make_mesh
from agentrl_jax.parallel.peaks import Peaks
from agentrl_jax.studies.abstract_run import AbstractRun
from agentrl_jax.studies.costs import Cost, CostModel
from agentrl_jax.studies.footprint import Footprint, StateSizes, state_sizes
from agentrl_jax.studies.mesh_search import configs, learners_of, replicas_of, wider_configs
from agentrl_jax.studies.phases import DECODE, OPTIMIZER, PREFILL, SCORE, UPDATE
from agentrl_jax.studies.plan import make_plan

RESHARD = "reshard"
"""The parameters of the update, brought into the layout of the rollout."""
GREEDY = "greedy"
"""The greedy episodes that ReMax compares with, one a group."""
LIMITS = ("compute", "memory", "communication")
SEARCHED = (
    *("mesh.fsdp", "mesh.sequence", "mesh.tensor", "mesh.rollout", "rollout.slots", "algo.grad_accum_steps"),
    *("model.remat", "optim.offload"),
)
"""Keys that a sweep changes; the last two and `mesh.rollout` only where nothing fits without."""


@dataclasses.dataclass(frozen=True)
class PhaseTime:
    """Estimated seconds of all calls of a phase in one iteration."""

    name: str
    calls: float
    """Number of calls; the first prefill, of one row per group, is a fraction of one."""
    compute: float
    memory: float
    communication: float

    @property
    def seconds(self) -> float:
        """The largest of the three."""
        return max(self.compute, self.memory, self.communication)

    @property
    def limit(self) -> str:
        """What limits it, one of `LIMITS`."""
        return max(LIMITS, key=lambda name: getattr(self, name))


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A configuration and its estimate; sizes in bytes per device."""

    config: Config
    mesh: dict[str, int]
    rows: int
    """Episodes that a rollout replica plays at a time."""
    microbatch: int
    """Rows of a microbatch of each learner."""
    phases: tuple[PhaseTime, ...]
    rollout_peak: float
    """The larger one of a rollout and of held-out episodes."""
    update_peak: float
    fits: bool
    """True if the memory of a device is not known."""
    exact: bool = False
    """The peaks are those of the compiled programs, as in `plan.Plan`, not estimates."""

    @property
    def seconds(self) -> float:
        """Estimated time of an iteration."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def peak(self) -> float:
        """The larger peak."""
        return max(self.rollout_peak, self.update_peak)

    @property
    def settings(self) -> dict[str, Any]:
        """Its values of the keys in `SEARCHED`."""
        return {key: _get(self.config, key) for key in SEARCHED}


@dataclasses.dataclass(frozen=True)
class Sweep:
    """All candidates, best first: those that fit by time, then the others by memory."""

    candidates: list[Candidate]
    file: dict[str, Any]
    """Values of the keys in `SEARCHED` in the file."""
    own: Candidate | None
    """The candidate with the settings of the file; None if they are not valid on these devices."""
    nearest: Candidate | None
    """If no candidate fits: the one that fits after the fewest changes, also of the last keys of `SEARCHED`."""
    notes: list[str]
    """What the estimates leave out of this configuration."""
    compiled_phases: int
    compiled_runs: int


class Sweeper:
    """Ranks meshes, `rollout.slots` and `algo.grad_accum_steps` for a configuration whose other settings stay.

    Phases are compiled when a candidate first needs them.

    Raises:
        UserError: a setting is not supported.
        ValueError: the model is unknown.
    """

    def __init__(
        self,
        config: Config,
        devices: list[jax.Device],
        model: str | None = None,
        report: Callable[[str], None] = lambda line: None,
    ):
        """Takes the arguments of `plan.make_plan`; all devices are used."""
        _check(config)
        self.config = config.replace(devices=len(devices))
        self.devices, self.model, self.report = devices, model, report
        one = self.config.replace(mesh=config.mesh.replace(fsdp=1, sequence=1, tensor=1, rollout="rows"))
        self.run = AbstractRun(one, make_mesh(devices[:1]), model)
        self.costs = CostModel(self.run, devices, report)
        self.slices = count_slices(devices)
        self._sizes: dict[MeshConfig, StateSizes] = {}

    def rank(self, memory: int | None, peaks: Peaks, *, compiled: int = 1) -> Sweep:
        """All candidates for chips with these peak rates and so many bytes of memory, None if it is not known.

        Of the best candidates that fit, `compiled` are compiled whole for their exact memory, and ranked again; if none
        fits, the nearest one.

        Raises:
            UserError: no mesh is valid for the configuration and these devices.
        """
        config, run, report = self.config, self.run, self.report
        found = [self._candidate(made, memory, peaks) for made in configs(config, run, self.slices)]
        if not found:
            raise UserError(
                f"no mesh of {len(self.devices)} devices is valid for {config.groups} groups of "
                f"{config.rollout.group_size}, {config.algo.minibatches} minibatches and "
                f"{run.model.decoder.num_kv_heads} key-value heads; change one",
                key="devices",
                value=len(self.devices),
            )
        own_values = {key: _get(config, key) for key in SEARCHED}
        own = next((one for one in found if one.settings == own_values), None)
        nearest = None
        if not any(one.fits for one in found):
            report("nothing fits; searching among model.remat full, optim.offload and mesh.rollout wide")
            wider = [self._candidate(made, memory, peaks) for made in wider_configs(config, run, self.slices)]
            nearest = min((one for one in wider if one.fits), key=lambda one: _distance(one, own_values), default=None)
        ranked = sorted(found, key=_rank)
        exact = [one for one in ranked if one.fits][:compiled] or ([nearest] if nearest and compiled else [])
        for number, candidate in enumerate(exact, 1):
            report(f"compiling the whole run of candidate {number} of {len(exact)}: {named(candidate)}")
            measured = self._compiled(candidate, memory)
            ranked = [measured if one is candidate else one for one in ranked]
            own, nearest = (measured if one is candidate else one for one in (own, nearest))
        report(f"compiled {self.costs.compiled} phase programs and {len(exact)} whole runs")
        notes = list(_left_out(config))
        return Sweep(sorted(ranked, key=_rank), own_values, own, nearest, notes, self.costs.compiled, len(exact))

    def _candidate(self, config: Config, memory: int | None, peaks: Peaks) -> Candidate:
        if config.mesh not in self._sizes:
            self._sizes[config.mesh] = state_sizes(self.run, self.devices, config)
        rows, microbatch = _rows(config, self.run), _microbatch(config, self.run)
        footprint = Footprint(config, self.run, self.costs, self._sizes[config.mesh], rows, microbatch)
        rollout, update = footprint.rollout_peak, footprint.update_peak
        return Candidate(
            config=config,
            mesh={"data": config.device_count // math.prod(config.mesh.axes().values()), **config.mesh.axes()},
            rows=rows,
            microbatch=microbatch,
            phases=tuple(_times(config, footprint, peaks)),
            rollout_peak=rollout,
            update_peak=update,
            fits=memory is None or max(rollout, update) <= memory,
        )

    def _compiled(self, candidate: Candidate, memory: int | None) -> Candidate:
        """The candidate with the peaks of its compiled programs."""
        plan = make_plan(candidate.config, self.devices, self.model, self.report)
        rollout, update = plan.playing_peak, plan.peaks["update"]
        fits = memory is None or max(rollout, update) <= memory
        return dataclasses.replace(candidate, rollout_peak=rollout, update_peak=update, fits=fits, exact=True)


def named(candidate: Candidate) -> str:
    """The mesh and batch of a candidate in words."""
    mesh = " x ".join(f"{name} {size}" for name, size in candidate.mesh.items())
    return f"{mesh}, {candidate.rows} rows a replica, microbatches of {candidate.microbatch}"


def _check(config: Config) -> None:
    if config.model.frozen_layers:
        raise UserError.of(
            "model.frozen_layers",
            config.model.frozen_layers,
            "but a sweep computes costs from equal layers; use agentrl plan without --sweep",
        )
    if config.algo.mismatch.kind == "replay":
        raise UserError(
            "algo.mismatch is replay, whose update replays the rollout, which a sweep does not count; use agentrl plan "
            "without --sweep, or algo.mismatch tis",
            key="algo.mismatch",
            value="replay",
        )


def _left_out(config: Config) -> Iterator[str]:
    if config.algo.packing:
        yield "algo.packing is true, but score and update count as without it: packed rows are fewer, and take less."
    if (rounds := config.algo.dynamic_sampling) > 1:
        yield f"algo.dynamic_sampling is {rounds}, but one round is counted; prefill and decode are of up to {rounds}."


def _times(config: Config, footprint: Footprint, peaks: Peaks) -> Iterator[PhaseTime]:
    """The phases of an iteration."""
    mesh, algo, sizes, run = config.mesh, config.algo, footprint.sizes, footprint.run
    rows, part, engine = footprint.rows, footprint.microbatch / mesh.sequence, run.engine
    waves = run.episodes / replicas_of(config) / rows
    parts = algo.minibatches * algo.grad_accum_steps

    def time(name: str, calls: float, flops: float, accessed: float, sent: float) -> PhaseTime:
        return PhaseTime(
            name, calls, calls * flops / peaks.flops, calls * accessed / peaks.bandwidth, calls * sent / peaks.link
        )

    def of(name: str, calls: float, cost: Cost, sent: float = 0.0, shards: int = 1) -> PhaseTime:
        return time(name, calls, cost.flops / shards, cost.accessed / shards, cost.sent / shards + sent)

    of_replica = functools.partial(footprint.costs.cost, tensor=footprint.rollout_tensor)
    of_learner = functools.partial(footprint.costs.cost, tensor=mesh.tensor, remat=config.model.remat)
    # The first observation of an episode is read once per group where its slots start together.
    first = waves - 1 + 1 / config.rollout.group_size
    yield time(RESHARD, 1, 0.0, sizes.decoder + sizes.resharded, footprint.sent_by_reshard)
    yield of(PREFILL, waves * (engine.max_turns - 1) + first, of_replica(PREFILL, rows))
    yield of(DECODE, waves * engine.max_turns * engine.max_response_tokens, of_replica(DECODE, rows))
    if config.algo.advantage.has_greedy:
        heads = run.episodes // config.rollout.group_size / replicas_of(config)
        prefill, decode = (of_replica(name, heads) for name in (PREFILL, DECODE))
        whole = zip(prefill, decode)
        cost = Cost(*(engine.max_turns * (x + engine.max_response_tokens * y) for x, y in whole))
        yield of(GREEDY, 1, cost)
    if passes := score_passes(run):
        yield of(SCORE, passes * parts, of_learner(SCORE, part), footprint.sent(gathers=1, scatters=0))
    yield of(UPDATE, algo.epochs * parts, of_learner(UPDATE, part), footprint.sent(gathers=2, scatters=1))
    steps = algo.epochs * algo.minibatches
    yield of(OPTIMIZER, steps, of_learner(OPTIMIZER, 0), footprint.sent_by_step, shards=mesh.fsdp)


def score_passes(run: AbstractRun) -> float:
    """Forward passes over the trained rows before the update, see `learner.row_scores.score_rows`."""
    config, before = run.config, run.batch.before
    reference = config.algo.kl.kind != "none" and config.algo.kl.estimator != "full"
    learner = before.old_logprob is not None and config.algo.mismatch.ratio_from != "rollout"
    # A row for the final state of every episode, also of those that a filter leaves out.
    final = run.episodes / run.trained if config.algo.advantage.bootstrap_truncated else 0.0
    return int(config.algo.advantage.has_critic) + int(reference) + int(learner) + final


def _rows(config: Config, run: AbstractRun) -> int:
    return config.rollout.slots or run.episodes // replicas_of(config)


def _microbatch(config: Config, run: AbstractRun) -> int:
    algo = config.algo
    return run.trained // (algo.minibatches * algo.grad_accum_steps * learners_of(config))


def _rank(candidate: Candidate) -> tuple[bool, float, int]:
    by = candidate.seconds if candidate.fits else candidate.peak
    return not candidate.fits, by, candidate.config.algo.grad_accum_steps


def _distance(candidate: Candidate, own: dict[str, Any]) -> tuple[int, float, float]:
    """Number of changed keys, how far numbers are changed, in doublings, and the time."""
    changed = {key: value for key, value in candidate.settings.items() if value != own[key]}
    numbers = [(value, own[key]) for key, value in changed.items() if isinstance(value, int) and value is not True]
    doublings = sum(abs(math.log2(max(new, 1) / max(old, 1))) for new, old in numbers)
    return len(changed), doublings, candidate.seconds


def _get(config: Config, key: str) -> Any:
    return functools.reduce(getattr, key.split("."), config)
