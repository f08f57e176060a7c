"""Checks of command line options that several commands share."""

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl_jax.config.tasks import NAMED_LEVELS
from agentrl_jax.errors import UserError, refusals, shortened
from agentrl_jax.io import try_writing


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Shortens an error message that tyro prints inside the block to a `UserError` of one line."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except SystemExit as end:
        if end.code in (0, None):
            raise
        _title, *lines = (line.strip(" │╭╮╰╯─") for line in printed.getvalue().splitlines())
        message = " ".join(line for line in lines if line.strip("-"))
        option = re.search(r"--[\w.-]+", message)
        raise UserError(message, key=option[0] if option else "") from None


def check_env(name: str, option: str) -> None:
    """Refuses the name of no environment; an import path is tried where it is imported."""
    from agentrl_jax.services.catalog import success_rule

    with refusals(option):
        success_rule(name)


def check_level_file(levels: str | None) -> None:
    """Refuses a missing level file; the `NAMED_LEVELS` need none."""
    if levels not in (None, *NAMED_LEVELS) and not Path(levels).is_file():
        what = "that is no file" if Path(levels).exists() else "there is no such file"
        raise UserError.of("--levels", levels, f"but {what}; give a text file with levels")


def check_out_file(path: str | None) -> None:
    """Makes the folder of a file to write if only this one is missing, and tries it, before anything long is done.

    Raises:
        UserError: the folder cannot be made, or the path is a folder.
    """
    if path is not None:
        if Path(path).is_dir():
            raise UserError.of("--out", path, "which is a folder; name a file in it")
        check_out_folder(path, Path(path).parent)


def check_out_folder(given: str, folder: Path) -> None:
    """Makes a folder to write into if it is missing and its parent is not, and tries it; `given` is the option's value.

    Raises:
        UserError: its parent is missing too, or it is no folder.
    """
    if not folder.absolute().parent.is_dir():
        raise UserError.of(
            "--out", given, f"but there is no folder {shortened(folder.parent)!r}; make it, or name another one"
        )
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError as error:
        raise UserError.of("--out", given, f"but {shortened(folder)} is no folder; name another one") from error
    try_writing(folder)


def check_at_least_1(command: Any, *names: str) -> None:
    """Refuses options that are given and less than 1."""
    for name in names:
        value = getattr(command, name)
        if value is not None and value < 1:
            raise UserError.of(f"--{name}", value, "expected at least 1")


def check_seconds(command: Any, name: str, *, never: bool = False) -> None:
    """Refuses a time that is not a finite number above 0, or with `never`, which 0 stands for, below 0."""
    value = getattr(command, name)
    if not ((value > 0 or (never and value == 0)) and value < float("inf")):
        expected = "0 for never, or a number of seconds" if never else "a number of seconds above 0"
        raise UserError.of(f"--{name}", value, f"expected {expected}")


def check_items(command: Any) -> None:
    """Refuses options for the items of a service of which one has no effect beside, or without, another."""
    if command.episodes is not None and command.items is not None:
        raise UserError.of("--episodes", command.episodes, "but --items names the items; leave one of them out")
    if command.token_file and command.url == "local":
        raise UserError.of("--token_file", command.token_file, "but without --url there is no server; leave it out")


def check_download(command: Any) -> None:
    """Refuses download options if nothing would be downloaded."""
    from agentrl_jax.runs.run_folder import is_run

    if command.revision and not command.online:
        raise UserError.of("--revision", command.revision, "but nothing is downloaded without --online; add it")
    if command.online and is_run(command.model):
        raise UserError.at(
            command.model,
            "is a run, whose configuration says where its model comes from (model.online); leave out --online",
        )
