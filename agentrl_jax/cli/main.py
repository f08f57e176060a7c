"""The command `agentrl` and its subcommands, one module of this folder each.

Errors that the user can fix end as one line on standard error and exit code 2.
"""

import importlib.metadata
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tyro

from agentrl_jax import stopping
from agentrl_jax.cli import (
    bench,
    chat,
    compare,
    compiled,
    data,
    diagnose,
    envs,
    eval,
    export,
    leaderboard,
    plan,
    play,
    presets,
    replay,
    runs,
    scaling,
    serve,
    serve_model,
    train,
    view,
)
from agentrl_jax.cli.checks import one_line_errors
from agentrl_jax.errors import UserError, refusals, text_flaw
from agentrl_jax.io import sentence
from agentrl_jax.terminal import to_stderr

_GOES_ON = {
    "train": "; the same command goes on from the last checkpoint, if there is one",
    "compare": "; the same command goes on with the variant it was at",
}
"""What happens when an interrupted command is given again."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs the command, `argv` after `agentrl` or the words of the process, and exits with its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if sys.stdin is None:  # closed, as by <&-: a file opened later must not take its number
        os.open(os.devnull, os.O_RDONLY)
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 (open for as long as the process)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # boards hold symbols that some terminals cannot show
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax also logs the errors that it raises
    if argv is None:
        sys.unraisablehook = _unraisable
        compiled.keep()
    try:
        _run(words)
    except KeyboardInterrupt:
        stopped = f"stopped{_GOES_ON.get(words[0] if words else '', '')}"
        if argv is None:  # threads that still compute would crash Python's teardown
            stopping.end(stopped, 130)
        _fail(stopped, 130)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        shown = sentence(error, _GOES_ON.get(words[0] if words else "", "; give the command again"))
        if shown is None:
            raise
        _fail(shown)
    sys.exit(0)


def _fail(message: str, code: int = 2) -> NoReturn:
    to_stderr(f"agentrl: {message}")
    sys.exit(code)


def _unraisable(raised: "sys.UnraisableHookArgs") -> None:
    """If a checkpoint cannot be written, TensorStore still calls back into the event loop that Orbax has closed."""
    if not (isinstance(raised.exc_value, RuntimeError) and str(raised.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(raised)


def _run(words: list[str]) -> None:
    for word in words:
        if flaw := text_flaw(word):
            raise UserError.at(word, f"has {flaw}; expected plain text")
    words = _without_rules(words)
    if _names_own_code(words) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    if words[:1] == ["--version"]:
        print(f"agentrl {_version()}")
        return
    if len(words) > 1 and words[0] in ("train", "plan"):
        (train.run if words[0] == "train" else plan.run)(words[1:])
        return
    if len(words) > 1 and words[0] in train.SHORT and not {"--help", "-h"} & {*words}:
        train.run_stage(words[0], words[1:])
        return
    with one_line_errors():
        command: Any = tyro.extras.subcommand_cli_from_dict(
            {
                _name(kind): kind
                for kind in (train.Train, train.Sft, train.Dpo, train.Evolve, train.Distill, plan.Plan, *_COMMANDS)
            },
            prog="agentrl",
            description="Multi-turn reinforcement learning of language-model agents. --version prints the version.",
            args=words or ["--help"],
            use_underscores=True,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    seed = getattr(command, "seed", None)
    if seed is not None and not 0 <= seed < 2**32:
        raise UserError.of("--seed", seed, f"expected an integer from 0 to {2**32 - 1}")
    _COMMANDS[type(command)](command)


def _without_rules(words: list[str]) -> list[str]:
    """The words without --rules MODULE, whose modules rules that runs have stored may be imported from."""
    named, rest, left = [], [], iter(words)
    for word in left:
        option, equals, value = word.partition("=")
        if option == "--rules":
            named.append(value if equals else next(left, ""))
        else:
            rest.append(word)
    if named:
        from agentrl_jax.setup.own_sources import name_module

        with refusals():
            for module in named:
                name_module(module)
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
    return rest


_IMPORT_PATH = re.compile(r"(--?[\w.]+=)?(compiled:)?[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def _names_own_code(words: list[str]) -> bool:
    """Whether a command names a class, or a file of a configuration, which may name some; the folder of a run may not.

    Modules of the working directory are found by such a command only, so that no run can bring code with it.
    """
    file = words[1] if len(words) > 1 and words[0] in ("train", "plan", "compare", *train.SHORT) else ""
    own = any(word.partition("=")[0] == "--own" for word in words)
    return own or os.path.isfile(file) or any(_IMPORT_PATH.fullmatch(word) for word in words)


def _version() -> str:
    try:
        return importlib.metadata.version("agentrl_jax")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "--version: the package agentrl_jax is not installed, Python only finds its folder; run pip install .",
            key="--version",
        ) from None


def _name(kind: type) -> str:
    """The name of a command: serve-model for `ServeModel`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()


_COMMANDS: dict[type, Callable[[Any], None]] = {
    compare.Compare: compare.run,
    eval.Eval: eval.run,
    runs.Runs: runs.run,
    leaderboard.Leaderboard: leaderboard.run,
    scaling.Scaling: scaling.run,
    envs.Envs: envs.run,
    serve.Serve: serve.run,
    serve_model.ServeModel: serve_model.run,
    play.Play: play.run,
    chat.Chat: chat.run,
    export.Export: export.run,
    data.Data: data.run,
    presets.Presets: presets.run,
    diagnose.Diagnose: diagnose.run,
    replay.Replay: replay.run,
    view.View: view.run,
    bench.Bench: bench.run,
}
"""The function of each command, in the order of `--help`; train and plan parse their words themselves."""
