"""Writes the recorded rollouts of a run in the format of another tool."""

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from agentrl_jax.errors import UserError, refusals
from agentrl_jax.formats.atif import write_files
from agentrl_jax.formats.episodes import RecordedEpisodes, read_together
from agentrl_jax.formats.inspect_log import write_log
from agentrl_jax.models.io.safetensors_files import atomic_folder, refuse_nonempty
from agentrl_jax.terminal import to_stderr

KINDS, VERSIONS, LOGS = ("atif", "inspect"), ("1.7", "1.8"), ("eval", "json")


def export_trajectories(
    run: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    kind: str,
    *,
    iteration: int | None = None,
    version: str = "1.7",
    log_format: str = "eval",
    report: Callable[[str], None] = to_stderr,
) -> str:
    """Writes the recorded episodes of an iteration, by default the last recorded one, into a new folder.

    Of an evaluation, the iterations are greedy play and the samples, and by default all are written.

    With the kind atif, the folder gets one JSON file per episode, in ATIF of this `version` (1.7 or 1.8); with the
    kind inspect, one Inspect log in this `log_format` (eval or json), or, of an evaluation, one of greedy play and one
    of the samples, which are the epochs of their levels. It is written completely or not at all. Returns
    a description of what was written.

    Raises:
        UserError: a word is unknown, the folder is not empty, there is no such record, or a package is missing.
    """
    target = Path(folder)
    with refusals():
        for name, value, known in (
            ("kind", kind, KINDS),
            ("version", version, VERSIONS),
            ("log_format", log_format, LOGS),
        ):
            if value not in known:
                raise UserError.of(f"{name}", value, f"expected one of {', '.join(known)}")
        refuse_nonempty(target)
        sources = read_together(run, iteration, report)
        which = " to ".join(dict.fromkeys(source.header.label for source in (sources[0], sources[-1])))
        what = f"{folder}: {sum(map(len, sources))} episodes of {run}, {which}"
        with atomic_folder(target, {}, {}) as temporary:
            if kind == "inspect":
                names = [write_log(part, temporary, log_format).name for part in _logs(sources)]
                return f"{what}, Inspect log{'s' if len(names) > 1 else ''} {' and '.join(names)}"
            for source in sources:
                write_files(source, temporary, version)
        return f"{what}, ATIF {version}"


def _logs(sources: Sequence[RecordedEpisodes]) -> list[list[RecordedEpisodes]]:
    """The records of each log: greedy play is not mixed with samples, because its temperature is another."""
    return [list(part) for _, part in itertools.groupby(sources, key=lambda source: source.header.temperature)]
