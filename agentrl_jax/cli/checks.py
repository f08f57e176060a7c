"""Checks of command line options that several commands share."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl_jax.errors import UserError


def known(name: str, where: str) -> None:
    """Refuses an unregistered environment tag."""
    from envs_jax.registry import spec

    with as_user_error(where):
        spec(name)


@contextlib.contextmanager
def as_user_error(where: str) -> Iterator[None]:
    """Turns the registry's errors about a name or an option into messages for the user."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def readable(levels: str | None) -> None:
    """Refuses a missing level file."""
    if levels is not None and not Path(levels).is_file():
        what = "that is no file" if Path(levels).exists() else "there is no such file"
        raise UserError(f"--levels is {levels!r}, but {what}; give a text file with levels")


def check_download(command: Any) -> None:
    """Refuses download options if nothing would be downloaded."""
    from agentrl_jax.runs.run_folder import is_run

    if command.revision and not command.online:
        raise UserError(f"--revision is {command.revision!r}, but nothing is downloaded without --online; add it")
    if command.online and is_run(command.model):
        raise UserError(
            f"{command.model}: is a run, whose configuration says where its model comes from (model.online); leave out "
            "--online"
        )
