"""Writes the recorded rollouts of a run in the format of another tool."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from agentrl_jax.errors import refusals
from agentrl_jax.formats.atif import write_files
from agentrl_jax.formats.episodes import read_episodes
from agentrl_jax.formats.inspect_log import write_log
from agentrl_jax.models.io.safetensors_files import atomic_folder, refuse_nonempty


def export_trajectories(
    run: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    kind: str,
    *,
    iteration: int | None = None,
    version: str = "1.7",
    log_format: str = "eval",
    report: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> str:
    """Writes the recorded episodes of an iteration, by default the last recorded one, into a new folder.

    With the kind atif, the folder gets one JSON file per episode, in ATIF of this `version` (1.7 or 1.8); with the
    kind inspect, one Inspect log in this `log_format` (eval or json). It is written completely or not at all. Returns
    a description of what was written.

    Raises:
        UserError: the folder is not empty, there is no such record, or a package is missing.
    """
    target = Path(folder)
    with refusals():
        refuse_nonempty(target)
        source = read_episodes(run, iteration, report)
        what = f"{folder}: {len(source)} episodes of {run}, iteration {source.header.iteration}"
        if kind == "inspect":
            with atomic_folder(target, {}, {}) as temporary:
                name = write_log(source, temporary, log_format).name
            return f"{what}, Inspect log {name}"
        with atomic_folder(target, {}, {}) as temporary:
            write_files(source, temporary, version)
        return f"{what}, ATIF {version}"
