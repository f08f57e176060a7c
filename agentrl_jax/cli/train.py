"""`agentrl train`: trains an agent, or resumes a run that was stopped."""

import dataclasses
import os
import signal
from typing import Annotated

import tyro

from agentrl_jax import stopping
from agentrl_jax.config import Config, load_config, shipped
from agentrl_jax.config.keys import listing
from agentrl_jax.errors import UserError, refusals


@dataclasses.dataclass(frozen=True)
class Train:
    """Train an agent, or resume a run that was stopped."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE.yaml")]
    """YAML file with the configuration, the name of an experiment (--list), or the folder of a run that goes on."""


_HELP = """Train an agent: agentrl train FILE.yaml [--key value ...], or go on with a run: agentrl train FOLDER

FILE.yaml holds any of the keys below; keys given here win over the file. agentrl train --list shows experiments that
come with the package and can be given by name: agentrl train demo.
A run that was stopped goes on from its last checkpoint when the same command is given again, or its folder. With a
file, --help shows its values.

--from RUN [--checkpoint N] starts a new run from the policy of another one (start.run, start.checkpoint), with
--start.optimizer true from its critic and optimizer too. --accept_changes goes on with other learning rates and other
numbers of the learning rule, from the last checkpoint on; config.history.jsonl keeps the change."""

_ACCEPT = "--accept_changes", "--accept-changes"
_SHORT = {"--from": "--start.run", "--checkpoint": "--start.checkpoint"}


def run(words: list[str]) -> None:
    """Trains with the words after `agentrl train`, or shows every key with its value."""
    accept_changes = any(word in _ACCEPT for word in words)
    words = [_long(word) for word in words if word not in _ACCEPT]
    if not words:
        raise UserError.of(
            _ACCEPT[0], True, "but no run is named; write `agentrl train FOLDER --accept_changes --key value`"
        )
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
    config = load_config(file, words[1:])

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
                    if kind == "compiled":
                        with refusals(f"tasks.{index}"):
                            make(task.env, **task.options)
                from agentrl_jax.train.run import train

                train(config, accept_changes=accept_changes)
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
