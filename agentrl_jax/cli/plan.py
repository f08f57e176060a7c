"""`agentrl plan`: memory and collectives of a run on any devices, present or not."""

import dataclasses
import json
from typing import Annotated

import tyro

from agentrl_jax.cli.checks import one_line_errors
from agentrl_jax.config import Config, load_config
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.terminal import Terminal, to_stderr

TABLE_WIDTH = 110
"""Least width of the table of a sweep in characters, also where the output is no terminal."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Compile a run for any devices, present or not, and print the memory and the collectives that it needs.

    The programs are those of an iteration and of the evaluation.

    Any key of the configuration can be given after the file, as in `agentrl train`. For example:
    agentrl plan qwen_sokoban --topology v5e:4x4 --mesh.fsdp 2
    """

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE.yaml")]
    """YAML file with the configuration, or the name of an experiment (agentrl train --list)."""
    topology: str = "local"
    """TPU slice such as v5e:4x4 or v5p:4x4x8 (needs the package libtpu), or local for the devices of this machine."""
    slices: int = 1
    """Number of such slices. A slower network connects them, and only the axis data crosses it."""
    shape: str | None = None
    """Published model, e.g. qwen2.5-7b, to use instead of the configuration's; only its shape is needed."""
    sweep: bool = False
    """Rank meshes, rollout.slots and algo.grad_accum_steps by the estimated time of an iteration instead."""
    compile: int | None = None
    """With --sweep: number of best configurations to compile whole, for their exact memory; default 1."""
    json: bool = False
    """Print one JSON object, in bytes, instead of tables."""


def run(words: list[str]) -> None:
    """Prints the plan of a configuration, which words after `agentrl plan` that are not its own options change."""
    with one_line_errors():
        options = (tyro.conf.FlagCreatePairsOff,)
        command, overrides = tyro.cli(
            Plan, prog="agentrl plan", args=words, return_unknown_args=True, use_underscores=True, config=options
        )
        if command.compile is not None and (not command.sweep or command.compile < 0):
            why = "expected at least 0" if command.sweep else "which needs --sweep"
            raise UserError.of("--compile", command.compile, why)
        if any(word.partition("=")[0] == "--devices" for word in overrides):
            raise UserError(
                "--devices is given, but a plan is for the devices of --topology; leave it out", key="--devices"
            )
    config = load_config(command.file, [*overrides, "--devices", "0"])  # the topology sets the devices
    from agentrl_jax.config.defaults import with_defaults
    from agentrl_jax.setup.own_rules import with_own_rules

    config = with_defaults(with_own_rules(config))
    if command.sweep:
        _sweep(command, config)
        return
    from agentrl_jax.parallel.topology import described_devices
    from agentrl_jax.studies.plan import make_plan
    from agentrl_jax.studies.plan_report import as_json, as_table

    with refusals():
        devices, memory = described_devices(command.topology, command.slices)
        plan = make_plan(config, devices, command.shape, report=to_stderr)
    if command.json:
        print(json.dumps(as_json(plan, memory), allow_nan=False))
    else:
        Terminal().print(as_table(plan, memory))


def _sweep(command: Plan, config: Config) -> None:
    from agentrl_jax.parallel.peaks import PEAKS, chip_name
    from agentrl_jax.parallel.topology import described_devices
    from agentrl_jax.studies.sweep import Sweeper
    from agentrl_jax.studies.sweep_report import as_json, as_table

    with refusals():
        devices, memory = described_devices(command.topology, command.slices)
        peaks = PEAKS[chip_name(devices[0])]
        compiled = 1 if command.compile is None else command.compile
        found = Sweeper(config, devices, command.shape, to_stderr).rank(memory, peaks, compiled=compiled)
    if command.json:
        print(json.dumps(as_json(found, memory), allow_nan=False))
    else:
        terminal = Terminal()
        terminal.width = max(terminal.width, TABLE_WIDTH)
        terminal.print(as_table(found, memory))
