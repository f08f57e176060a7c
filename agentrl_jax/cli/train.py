"""`agentrl train`: trains an agent, or resumes a run that was stopped."""

import dataclasses
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import tyro

from agentrl_jax import stopping
from agentrl_jax.config import Config, load_config, shipped
from agentrl_jax.config.distillation import SelfDistillation
from agentrl_jax.config.fields import Section
from agentrl_jax.config.keys import listing
from agentrl_jax.config.load import read_yaml
from agentrl_jax.config.stages import DpoStage, EvolveStage, SftStage
from agentrl_jax.errors import UserError, refusals


@dataclasses.dataclass(frozen=True)
class Train:
    """Train an agent, or resume a run that was stopped."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE.yaml")]
    """YAML file with the configuration, the name of an experiment (--list), or the folder of a run that goes on."""


@dataclasses.dataclass(frozen=True)
class Sft:
    """Learn from conversations: `agentrl train` with one stage sft, whose keys are given as --data, --epochs."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE.yaml")]
    """YAML file with the configuration, or the name of an experiment."""


@dataclasses.dataclass(frozen=True)
class Dpo(Sft):
    """Learn from preference pairs: `agentrl train` with one stage dpo, whose keys are given as --data, --beta."""


@dataclasses.dataclass(frozen=True)
class Evolve(Sft):
    """Explore and learn from successes: `agentrl train` with one stage evolve, as --rounds, --steps."""


@dataclasses.dataclass(frozen=True)
class Distill(Sft):
    """Learn from a teacher that reads the plan: `agentrl train` with algo.distillation, as --loss, --teacher."""


KINDS = Train, Sft, Dpo, Evolve, Distill

SHORT: dict[str, tuple[str, type[Section]]] = {
    "sft": ("stages.0", SftStage),
    "dpo": ("stages.0", DpoStage),
    "evolve": ("stages.0", EvolveStage),
    "distill": ("algo.distillation", SelfDistillation),
}
"""Commands that are `agentrl train` with a stage or a teacher: the section whose keys they take without its name."""

_HELP = """Train an agent: agentrl train FILE.yaml [--key value ...], or go on with a run: agentrl train FOLDER

FILE.yaml holds any of the keys below; keys given here win over the file. agentrl train --list shows experiments that
come with the package and can be given by name: agentrl train demo.
A run that was stopped goes on from its last checkpoint when the same command is given again, or its folder. With a
file, --help shows its values.

--from RUN [--checkpoint N] starts a new run from the policy of another one (start.run, start.checkpoint), with
--start.optimizer true from its critic and optimizer too. --accept_changes goes on with other learning rates and other
numbers of the learning rule, from the last checkpoint on; config.history.jsonl keeps the change.

algo.advantage, algo.objective and algo.filter take your functions, module:function, see agentrl_jax.rules. A command
that names only the folder of such a run needs --rules MODULE; --rules_changed goes on after the module has changed."""

_ACCEPT = "--accept_changes", "--accept-changes"
_RULES_CHANGED = "--rules_changed", "--rules-changed"
_SHORT = {"--from": "--start.run", "--checkpoint": "--start.checkpoint"}


def run(words: list[str]) -> None:
    """Trains with the words after `agentrl train`, or shows every key with its value."""
    accept_changes, rules_changed = (any(word in given for word in words) for given in (_ACCEPT, _RULES_CHANGED))
    words = [_long(word) for word in words if word not in (*_ACCEPT, *_RULES_CHANGED)]
    if not words and accept_changes:
        raise UserError.of(
            _ACCEPT[0], True, "but no run is named; write `agentrl train FOLDER --accept_changes --key value`"
        )
    if not words:
        raise UserError.of(_RULES_CHANGED[0], True, "but no run is named; write `agentrl train FOLDER --rules_changed`")
    if words == ["--list"]:
        print(shipped.listing())
        return
    file = words[0] if not words[0].startswith("-") else None
    if "--help" in words or "-h" in words:
        default = load_config(file, [word for word in words[1:] if word not in ("--help", "-h")]) if file else Config()
        print(f"{_HELP}\n{listing(default)}")
        return
    if file is None:
        raise UserError(
            f"{words[0]!r} is given where the YAML file is expected; write `agentrl train FILE.yaml --key value`",
            key="FILE.yaml",
            value=words[0],
        )
    _train(load_config(file, words[1:]), accept_changes, rules_changed)


def run_stage(kind: str, words: list[str]) -> None:
    """Trains as a command of `SHORT` says, with the words after it: its file, keys of its section, and others."""
    if not words or words[0].startswith("-"):
        raise UserError(f"no file is given; write `agentrl {kind} FILE.yaml --key value`", key="FILE.yaml")
    data = read_yaml(words[0])
    data.setdefault("run_dir", os.path.join("runs", f"{Path(words[0]).stem}-{kind}"))
    section, keys = SHORT[kind]
    rest = [*_with_section(section, keys, words[1:])]
    if kind == "distill":
        rest = ["--algo.distillation.kind", "self", *rest]
    else:
        given = [stage for stage in data.get("stages", []) if isinstance(stage, dict) and stage.get("kind") == kind]
        data["stages"] = given[:1] or [{"kind": kind}]
    _train(load_config(data, rest))


def _with_section(section: str, keys: type[Section], words: list[str]) -> Iterator[str]:
    """The words, with the keys of a section by their whole names."""
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for before, word in zip(["", *words], words):
        name = word.removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in keys.model_fields:
            yield f"--{section}.{name}"
        elif before == "--data" and not word.startswith("["):
            yield json.dumps(word.split(","))
        else:
            yield _long(word)


def _train(config: Config, accept_changes: bool = False, rules_changed: bool = False) -> None:
    """Trains in this process, after what has to be done before JAX is used."""

    def kept() -> str:
        return _kept(config.run_dir)

    with stopping.ends_with(kept):
        from agentrl_jax.parallel import hosts
        from agentrl_jax.parallel.mesh import simulate_cpu_devices

        # Before JAX is used, which importing the environments does.
        processes = hosts.start(config.hosts)
        try:
            with hosts.ending_together(processes, kept):
                if not config.hosts.coordinator:
                    simulate_cpu_devices(config.devices)
                from envs_jax.registry import make

                for index, (task, kind) in enumerate(zip(config.tasks, config.kinds)):
                    if not kind.on_host:
                        with refusals(f"tasks.{index}"):
                            make(task.env, **task.options)
                from agentrl_jax.train.run import train

                train(config, accept_changes=accept_changes, rules_changed=rules_changed)
        except stopping.Stopped as stopped:
            stopping.end(f"stopped by {signal.Signals(stopped.number).name}; {kept()}", 128 + stopped.number)


def _long(word: str) -> str:
    """An option with its short names written out."""
    name, equals, value = word.partition("=")
    return _SHORT.get(name, name) + equals + value


def _kept(run: str) -> str:
    """Describes what is left of a stopped run."""
    from agentrl_jax.runs.checkpoint import complete_steps

    steps = complete_steps(os.path.join(run, "checkpoints"))
    if not steps:
        return "there is no checkpoint yet; the same command begins again"
    return f"the checkpoint of step {steps[-1]} is kept; the same command goes on from it"
