"""The command `agentrl`: train, compare, eval, envs, serve, play, chat, export, plan, presets, diagnose, bench.

Errors that the user can fix end as one line on standard error and exit code 2.
"""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tyro

from agentrl_jax import stopping
from agentrl_jax.cli import bench, chat, compare, diagnose, envs, eval, export, plan, play, presets, serve, train
from agentrl_jax.errors import MAX_ERROR, UserError, shortened, text_flaw
from agentrl_jax.io import FULL

_GOES_ON = {
    "train": "; the same command goes on from the last checkpoint, if there is one",
    "compare": "; the same command goes on with the variant it was at",
}
"""What happens when an interrupted command is given again."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs the command and exits with its exit code.

    Args:
        argv: words after `agentrl`; default: those of the process.
    """
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
    try:
        _run(words)
    except UserError as error:
        print(f"agentrl: {shortened(error, MAX_ERROR)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sentence = f"stopped{_GOES_ON.get(words[0] if words else '', '')}"
        if argv is None:  # threads that still compute would crash Python's teardown
            stopping.end(sentence, 130)
        print(f"agentrl: {sentence}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.errno in FULL:
            file = error.filename or "a file"
            again = _GOES_ON.get(words[0] if words else "", "; give the command again")
            print(f"agentrl: {file}: the disk is full; nothing is lost: make room{again}", file=sys.stderr)
            sys.exit(2)
        where, why = shortened(error.filename or "a file"), error.strerror or shortened(error)
        print(
            f"agentrl: {where}: cannot be used ({why}), expected a path that can be read and written; give another "
            "one, on a disk with room",
            file=sys.stderr,
        )
        sys.exit(2)
    except Exception as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        what = shortened(str(error).splitlines()[0], 500) if str(error) else "out of memory"
        print(f"agentrl: {what}; lower the number of groups, the batch or the size of the model", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


def _unraisable(told: "sys.UnraisableHookArgs") -> None:
    """If a checkpoint cannot be written, TensorStore still calls back into the event loop that Orbax has closed."""
    if not (isinstance(told.exc_value, RuntimeError) and str(told.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(told)


def _run(words: list[str]) -> None:
    for word in words:
        if flaw := text_flaw(word):
            raise UserError(f"{shortened(ascii(word))}: has {flaw}; expected plain text")
    if words[:1] == ["train"] and len(words) > 1:
        train.run(words[1:])
        return
    overrides: list[str] = []
    if words[:1] == ["plan"] and not {"--help", "-h"} & set(words):
        words, overrides = plan.own_words(words)
    command = _parse(words or ["--help"])
    seed = getattr(command, "seed", None)
    if seed is not None and not 0 <= seed < 2**32:
        raise UserError(f"--seed is {seed}, expected a whole number from 0 to {2**32 - 1}")
    if isinstance(command, plan.Plan):
        plan.run(command, overrides)
    else:
        _COMMANDS[type(command)](command)


def _parse(words: list[str]) -> Any:
    """Parses the command line; tyro's error message is shortened to one line."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.extras.subcommand_cli_from_dict(
                {kind.__name__.lower(): kind for kind in (train.Train, plan.Plan, *_COMMANDS)},
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


_COMMANDS: dict[type, Callable[[Any], None]] = {
    compare.Compare: compare.run,
    eval.Eval: eval.run,
    envs.Envs: envs.run,
    serve.Serve: serve.run,
    play.Play: play.run,
    chat.Chat: chat.run,
    export.Export: export.run,
    presets.Presets: presets.run,
    diagnose.Diagnose: diagnose.run,
    bench.Bench: bench.run,
}
"""The function of each command, in the order of `--help`; train and plan parse their words themselves."""
