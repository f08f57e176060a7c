"""The command `agentrl`: train, compare, eval, envs, serve, play, chat, export, plan, presets, diagnose, bench.

Whatever the user can put right ends as one line on standard error and exit code 2.
"""

import contextlib
import dataclasses
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tyro
from rich.console import Console

from agentrl_jax import stopping
from agentrl_jax.cli import reports as command_reports
from agentrl_jax.cli.checks import as_user_error, known, readable
from agentrl_jax.cli.commands import (
    Bench,
    Chat,
    Compare,
    Diagnose,
    Envs,
    Eval,
    Export,
    Plan,
    Play,
    Presets,
    Serve,
    Train,
)
from agentrl_jax.config import Config, load_config
from agentrl_jax.config.listing import listing
from agentrl_jax.errors import MAX_ERROR, UserError, shortened, text_flaw
from agentrl_jax.io import FULL

_TRAIN_HELP = """Train an agent: agentrl train FILE.yaml [--key value ...]

FILE.yaml holds any of the keys below (experiments/ has examples); keys given here win over the file. A run that was
stopped goes on from its last checkpoint when the same command is given again. With a file, --help shows its values."""


_GOES_ON = {
    "train": "; the same command goes on from the last checkpoint, if there is one",
    "compare": "; the same command goes on with the variant it was at",
}
"""What a command that was stopped does when it is given again."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs the command and leaves with its exit code.

    Args:
        argv: words after `agentrl`; those of the process if left out.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if sys.stdin is None:  # closed, as by <&-: nothing is to be read, and no file that is opened may take its number
        os.open(os.devnull, os.O_RDONLY)
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 (open for as long as the process)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # boards hold symbols that some terminals cannot show
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax logs what it raises too
    try:
        _run(words)
    except UserError as error:
        print(f"agentrl: {shortened(error, MAX_ERROR)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sentence = f"stopped{_GOES_ON.get(words[0] if words else '', '')}"
        if argv is None:  # threads that still compute would make Python's teardown end by a fault
            stopping.end(sentence, 130)
        print(f"agentrl: {sentence}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.errno in FULL:
            file = error.filename or "a file"
            again = _GOES_ON.get(words[0] if words else "", "; give the command again")
            print(f"agentrl: {file}: the disk is full; nothing is lost: make room{again}", file=sys.stderr)
            sys.exit(2)
        print(f"agentrl: {shortened(error, 500)}; give a path that can be used, on a disk with room", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        what = shortened(str(error).splitlines()[0], 500) if str(error) else "out of memory"
        print(f"agentrl: {what}; lower the number of groups, the batch or the size of the model", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


def _run(words: list[str]) -> None:
    for word in words:
        if flaw := text_flaw(word):
            raise UserError(f"{shortened(ascii(word))}: has {flaw}; expected plain text")
    if words[:1] == ["train"] and len(words) > 1:
        _train(words[1:])
        return
    overrides: list[str] = []
    if words[:1] == ["plan"] and not {"--help", "-h"} & set(words):
        words, overrides = _own_words(words)
    command = _parse(words or ["--help"])
    seed = getattr(command, "seed", None)
    if seed is not None and not 0 <= seed < 2**32:
        raise UserError(f"--seed is {seed}, expected a whole number from 0 to {2**32 - 1}")
    if isinstance(command, Plan):
        _plan(command, overrides)
    else:
        _COMMANDS[type(command)](command)


def _own_words(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of `agentrl plan` itself, and those that change its configuration."""
    own, others = words[:2], words[2:]
    rest: list[str] = []
    options = {field.name: field.type is bool for field in dataclasses.fields(Plan) if field.name != "file"}
    while others:
        word = others.pop(0)
        name = word.lstrip("-").partition("=")[0]
        group = own if name in options else rest
        group.append(word)
        takes_a_value = "=" not in word and not options.get(name, False)
        if takes_a_value and others:
            group.append(others.pop(0))
    return own, rest


def _plan(command: Plan, overrides: list[str]) -> None:
    config = load_config(command.file, [*overrides, "--devices", "0"])  # those of the topology
    from agentrl_jax.errors import refusals
    from agentrl_jax.parallel.topology import described_devices
    from agentrl_jax.studies.plan import make_plan
    from agentrl_jax.studies.plan_report import as_json, as_table

    with refusals():
        devices, memory = described_devices(command.topology)
        plan = make_plan(config, devices, command.shape, report=lambda line: print(line, file=sys.stderr))
    if command.json:
        print(json.dumps(as_json(plan, memory), allow_nan=False))
    else:
        Console().print(as_table(plan, memory))


def _parse(words: list[str]) -> Any:
    """Reads the command line; what tyro prints about a mistake is brought down to one line."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.extras.subcommand_cli_from_dict(
                {kind.__name__.lower(): kind for kind in (Train, Plan, *_COMMANDS)},
                prog="agentrl",
                description="Multi-turn reinforcement learning of language-model agents.",
                args=words,
                use_underscores=True,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as end:
        if end.code in (0, None):
            raise
        _title, *lines = (line.strip(" │╭╮╰╯─") for line in complaint.getvalue().splitlines())
        raise UserError(" ".join(line for line in lines if line.strip("-"))) from None


def _train(words: list[str]) -> None:
    file = words[0] if not words[0].startswith("-") else None
    if "--help" in words or "-h" in words:
        default = load_config(file, [word for word in words[1:] if word not in ("--help", "-h")]) if file else Config()
        print(f"{_TRAIN_HELP}\n{listing(default)}")
        return
    if file is None:
        raise UserError(
            f"{words[0]!r} stands where the YAML file is expected; write `agentrl train FILE.yaml --key value`"
        )
    config = load_config(file, words[1:])
    with stopping.ends_with(lambda: _kept(config.run_dir)):
        _train_by(config)


def _kept(run: str) -> str:
    """What is left of a run that is stopped."""
    from agentrl_jax.runs.checkpoint import complete_steps

    steps = complete_steps(os.path.join(run, "checkpoints"))
    if not steps:
        return "there is no checkpoint yet; the same command begins again"
    return f"the checkpoint of step {steps[-1]} is kept; the same command goes on from it"


def _train_by(config: Config) -> None:
    from envs_jax.registry import make

    for index, task in enumerate(() if config.served else config.tasks):
        with as_user_error(f"tasks.{index}"):
            make(task.env, **task.options)
    from agentrl_jax.train.run import train

    train(config)


def _serve(command: Serve) -> None:
    from agentrl_jax.services.server.command import run

    run(command)


def _play(command: Play) -> None:
    known(command.env, "env")
    readable(command.levels)
    from agentrl_jax.evaluate.play import play

    play(command.env, style=command.style, think=command.think, seed=command.seed, levels=command.levels)


def _chat(command: Chat) -> None:
    if command.temperature < 0:
        raise UserError(f"--temperature is {command.temperature}, expected 0 or more")
    for name in ("max_tokens", "length"):
        if getattr(command, name) < 1:
            raise UserError(f"--{name} is {getattr(command, name)}, expected at least 1")
    _check_download(command)
    from agentrl_jax.evaluate.chat import chat

    chat(**dataclasses.asdict(command))


def _export(command: Export) -> None:
    _check_download(command)
    from agentrl_jax.studies.export import export

    print(export(**dataclasses.asdict(command)))


def _check_download(command: Chat | Export) -> None:
    """Refuses options of a download where nothing would be downloaded."""
    from agentrl_jax.runs.run_folder import is_run

    if command.revision and not command.online:
        raise UserError(f"--revision is {command.revision!r}, but nothing is downloaded without --online; add it")
    if command.online and is_run(command.model):
        raise UserError(
            f"{command.model}: is a run, whose configuration says where its model comes from (model.online); leave out "
            "--online"
        )


_COMMANDS: dict[type, Callable[[Any], None]] = {
    Compare: command_reports.compare,
    Eval: command_reports.evaluate,
    Envs: command_reports.envs,
    Serve: _serve,
    Play: _play,
    Chat: _chat,
    Export: _export,
    Presets: command_reports.presets,
    Diagnose: command_reports.diagnose,
    Bench: command_reports.bench,
}
"""What each command does, in the order of `--help`; train and plan read their own words."""
