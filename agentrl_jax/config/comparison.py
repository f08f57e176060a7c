"""The file of `agentrl compare`: one run, and what each variant changes of it.

seeds: 5
run:                      # as a file of `agentrl train`
  tasks: [{env: FrozenLake, groups: 16}]
variants:
  grpo: {algo: {preset: grpo}}
  rloo: {algo: {preset: rloo}, optim: {lr: 1.0e-3}}
grid:                     # optional: each variant with every combination of these
  optim.lr: [3.0e-4, 1.0e-3]

Variants and grids may also change model, imitation and tasks; those that share a start and levels are paired.
"""

import functools
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError

from agentrl_jax.config.checks import Refused, validate
from agentrl_jax.config.fields import Count, Positive, Section
from agentrl_jax.config.load import decode, differences, merged, read_yaml, to_dict
from agentrl_jax.config.schema import Config, HostsConfig, MeshConfig, TrainConfig
from agentrl_jax.errors import BadValue, UserError, refusals, shortened, shown

_RULE = ("algo", "optim")
"""Sections of the learning rule, which variants of one start on the same levels change."""
_STARTS = ("model", "imitation", "tasks")
"""Sections of the start and of the levels; variants that differ there are not paired."""
_SECTIONS = (*_RULE, *_STARTS)
_MOST_CELLS = 256
_MARKS = str.maketrans("", "", "_-.=")
_ONLY_RL = ("lr", "critic_lr", "warmup", "warmup_share", "schedule", "offload", "average_rate")
"""Settings of the optimizer that imitation does not read."""

_ONLY_TRAIN = (
    *(
        "checkpoint_every",
        "keep",
        "keep_every",
        "max_bad_updates",
        "roll_back_factor",
        "max_roll_backs",
        "mutual_information_pairs",
    ),
    *("trajectories_every", "trajectories", "recorded_mb", "best", "stop", "metrics"),
)
"""Settings of `train` that a comparison does not read."""


class _File(Section):
    seeds: Positive = 5
    devices: Count = 1
    run: dict[str, Any] = Field(default_factory=dict)
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()


class Comparison(NamedTuple):
    """The variants that are compared, each with `seeds` seeds: `run.seed`, `run.seed` + 1 and so on.

    The seeds are distributed over `devices` devices, 0 for all available ones. `variants` have the first seed; of each
    of the `pairs` (a, b), the difference a - b is reported.
    """

    seeds: int
    devices: int
    variants: Mapping[str, Config]
    pairs: tuple[tuple[str, str], ...]

    @property
    def shared(self) -> Config:
        """A configuration for what all variants have in common, of one of `chunks`."""
        return next(iter(self.variants.values()))

    @property
    def chunks(self) -> list["Comparison"]:
        """The variants that differ in their learning rule alone, each time as one comparison."""
        found: dict[str, dict[str, Config]] = {}
        for name, config in self.variants.items():
            start = json.dumps({key: part for key, part in to_dict(config).items() if key not in _RULE})
            found.setdefault(start, {})[name] = config
        return [self._replace(variants=variants) for variants in found.values()]


def load_comparison(path: str | os.PathLike[str]) -> Comparison:
    """Reads a file and checks that its variants can be compared.

    Raises:
        UserError: the file cannot be read, a variant's configuration is invalid, a variant changes more than its
            learning rule, or variants differ in their number of gradient steps.
    """
    try:
        file = _File.model_validate_json(json.dumps(read_yaml(path)))
    except ValidationError as error:
        first = error.errors()[0]
        where = shortened(".".join(map(str, first["loc"])) or "the file")
        known = ", ".join(_File.model_fields)
        why = f"{where}: {shortened(first['msg'])}; the keys are {known}"
        raise UserError(f"{path}: {why}", key=where) from error
    with refusals(f"{path}"):
        cells = _cells(file)
    variants = {name: _variant(path, file.run, name, changes) for name, changes in cells.items()}
    for name in (name for pair in file.pairs for name in pair if name not in variants):
        known = shortened(", ".join(variants))
        raise UserError.after(path, BadValue.of("pairs", name, f"but the variants are {known}; use one of them"))
    comparison = Comparison(file.seeds, file.devices, variants, file.pairs)
    for refused in itertools.chain(*map(_refusals, comparison.chunks), _differing_steps(comparison)):
        raise UserError.after(path, BadValue.of(*refused))
    return comparison


def _cells(file: _File) -> dict[str, dict[str, dict[str, Any]]]:
    """The variants, each with every combination of the values of the grid, by their names."""
    if not (file.variants or file.grid):
        raise BadValue("there are no variants; give variants, or a grid", key="variants")
    for key, values in file.grid.items():
        if key.partition(".")[0] not in _SECTIONS or "." not in key:
            raise BadValue.of("grid", key, f"expected keys below {', '.join(_SECTIONS)}, such as optim.lr")
        if len({json.dumps(value) for value in values}) < len(values):
            raise BadValue.of(f"grid.{key}", values, "where a value stands twice")
    cells = {}
    for name, changes in (file.variants or {"": {}}).items():
        for combination in itertools.product(*file.grid.values()):
            chosen = dict(zip(file.grid, combination))
            parts = [f"{key.rpartition('.')[2]}={_short(value)}" for key, value in chosen.items()]
            cell = "-".join(filter(None, [name, *parts]))
            if cell in cells:
                raise BadValue.of("grid", cell, "which names two cells; give one of the keys as variants")
            starts = {key.partition(".")[0] for key in chosen}.intersection(_STARTS).difference(changes)
            shared = {section: file.run.get(section, {}) for section in starts}
            cells[cell] = functools.reduce(_with_value, chosen.items(), shared | changes)
    if len(cells) > _MOST_CELLS:
        raise BadValue.of("grid", len(cells), f"cells with the variants; expected at most {_MOST_CELLS}")
    return cells


def _with_value(changes: Any, item: tuple[str, Any], whole: str = "") -> Any:
    """Changes with a value at a dotted key, which is all of `whole`; what is there by its kind alone gets keys.

    Raises:
        BadValue: the key counts beyond the end of a list.
    """
    (name, _, below), value, whole = item[0].partition("."), item[1], whole or item[0]
    if isinstance(changes, list):
        if not (name.isdigit() and int(name) < len(changes) and below):
            raise BadValue.of("grid", whole, f"expected a number below {len(changes)} and a key of that entry")
        at = int(name)
        return [_with_value(entry, (below, value), whole) if at == i else entry for i, entry in enumerate(changes)]
    if below:
        inner = changes.get(name, {})
        value = _with_value({"kind": inner} if isinstance(inner, str) else inner, (below, value), whole)
    return {**changes, name: value}


def _short(value: Any) -> str:
    """A value in the name of a cell."""
    text = value.get("kind", "") if isinstance(value, dict) else value
    text = f"{text:g}" if isinstance(text, float) else str(text)
    return "".join(letter if letter.isalnum() or letter in "_-." else "_" for letter in text)


def _variant(path: Any, run: Mapping[str, Any], name: str, changes: Mapping[str, dict[str, Any]]) -> Config:
    if name.startswith(".") or not name.translate(_MARKS).isalnum() or len(name) > 100:
        why = "which names a file; use 1 to 100 letters, digits, _, - and ., and shorter values in a grid"
        raise UserError.after(path, BadValue.of("variants", name, why))
    data = dict(run)
    for section, values in changes.items():
        key = f"variants.{name}.{section}"
        if section not in _SECTIONS:
            why = f"but variants share all except {', '.join(_SECTIONS)}; put it under run, or compare two files"
            raise UserError.after(path, BadValue.of(key, values, why))
        if section == "tasks":
            data[section] = values
            continue
        if not isinstance(values, dict):
            raise UserError.after(path, BadValue.of(key, values, "expected keys with values"))
        shared = run.get(section) or {}
        shared = {"kind": shared} if section == "optim" and isinstance(shared, str) else shared
        if not isinstance(shared, dict):
            raise UserError.after(path, BadValue.of(f"run.{section}", shared, "expected keys with values"))
        data[section] = merged(shared, values) if section == "algo" else {**shared, **values}
    config = decode(data, source=f"{path}: variants.{name}")
    try:
        validate(config)
    except UserError as error:
        raise UserError.after(f"{path}: variants.{name}", error) from error
    return config


def _refusals(comparison: Comparison) -> Iterator[Refused]:
    first, train = comparison.shared, comparison.shared.train
    if first.devices != 1 or first.mesh != MeshConfig():
        yield (
            "run.devices",
            first.devices,
            "which is not read, as run.mesh; a seed has one device: give devices beside run",
        )
    if first.hosts != HostsConfig():
        yield "run.hosts", "given", "but a comparison runs in one process; leave it out"
    if train.on_collapse != "go_on":
        yield "run.train.on_collapse", train.on_collapse, "but variants have equal lengths; use go_on"
    if every := train.mutual_information_every:
        yield "run.train.mutual_information_every", every, "which only `agentrl train` reads; use 0"
    if rounds := first.imitation.dagger_rounds:
        yield "run.imitation.dagger_rounds", rounds, "which only `agentrl train` reads; use 0"
    if share := first.imitation.hinted:
        yield "run.imitation.hinted", share, "which only `agentrl train` reads; use 0"
    if any(config.algo.distillation.kind != "none" for config in comparison.variants.values()):
        yield "algo.distillation", "self", "which only `agentrl train` reads; use none"
    if any(config.optim.offload for config in comparison.variants.values()):
        yield "optim.offload", True, "which only `agentrl train` reads; use false"
    if first.seed + comparison.seeds > 2**32:
        yield "run.seed", first.seed, f"but with {comparison.seeds} seeds expected at most {2**32 - comparison.seeds}"
    for key in _ONLY_TRAIN:
        if (given := getattr(train, key)) != getattr(TrainConfig(), key):
            yield f"run.train.{key}", given, "which only `agentrl train` reads; leave it out"
    for index, task in enumerate(first.tasks):
        if (kind := task.sampling.kind) != "draws":
            yield f"run.tasks.{index}.sampling", kind, "which only `agentrl train` reads; leave it out"
    if first.stages:
        yield "run.stages", [stage.kind for stage in first.stages], "which only `agentrl train` reads; leave it out"
    if first.start.run:
        yield "run.start.run", first.start.run, "which only `agentrl train` reads; leave it out"
    if first.run_dir:
        yield "run.run_dir", first.run_dir, "which only `agentrl train` reads; give --out"
    if not train.validate_every:
        yield "run.train.validate_every", 0, "but a comparison shows validations; give at least 1"
    if not train.iterations:
        yield "run.train.iterations", 0, "so that nothing is learned; give at least 1"
    if first.imitation.steps:
        yield from _differing_imitations(comparison)


def _differing_steps(comparison: Comparison) -> Iterator[Refused]:
    """Names a variant with another number of gradient steps an iteration than the first one."""
    steps = {name: config.algo.epochs * config.algo.minibatches for name, config in comparison.variants.items()}
    (usual, expected), *others = steps.items()
    for name, number in others:
        if number != expected:
            key = f"variants.{name}: algo.epochs x algo.minibatches"
            yield key, number, f"but {expected} in {usual}; give all the same"


def _differing_imitations(comparison: Comparison) -> Iterator[Refused]:
    """Names settings of imitation, which all variants share, that are not those of the first variant."""
    (usual, first), *others = comparison.variants.items()
    for name, config in others:
        optims = [each.optim.model_dump(exclude={*_ONLY_RL}) for each in (first, config)]
        pairs = {
            **{f"optim.{key}": tuple(optim.get(key) for optim in optims) for key in {**optims[0], **optims[1]}},
            "algo.packing": (first.algo.packing, config.algo.packing),
        }
        for key, (expected, given) in pairs.items():
            if given != expected:
                why = "but imitation, which all variants share, reads it too; give all the same, or imitation.steps 0"
                yield f"variants.{name}.{key}", given, f"and {shown(expected)} in {usual}, {why}"


def check_same(name: str, saved: Config, now: Config) -> None:
    """Raises UserError if a variant that is resumed was run with another configuration."""
    keys = differences(saved, now)
    if keys:
        given = f"was played with another configuration ({', '.join(keys[:6])} differ)"
        why = f"{given}; give another folder with --out, or delete the variant's file there"
        raise UserError(f"the variant {name} {why}", key=keys[0], value=name)
