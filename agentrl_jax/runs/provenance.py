"""Where the numbers of a run come from: a row of provenance.jsonl for each process, with the `step` it went on from."""

import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl_jax.config.load import installed_version
from agentrl_jax.strict_json import parse_object

PROVENANCE = "provenance.jsonl"
_GIT_SECONDS = 5.0


def of_process() -> dict[str, Any]:
    """What this process is: version and commit, see `code`, host, date (UTC), command line and Python."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "command": shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]]),
        **code(),
        "python": platform.python_version(),
    }


def code(package: Path = Path(__file__).parents[1]) -> dict[str, str | None]:
    """Version of the package, and the commit of its checkout; None for what is not known. Never fails."""
    # An installed package may lie inside the checkout of another project.
    tracked = _git(package, "ls-files", "--error-unmatch", "__init__.py")
    commit = _git(package, "describe", "--always", "--dirty", "--tags") if tracked else None
    return {"version": installed_version(), "commit": commit}


def _git(folder: Path, *words: str) -> str | None:
    """What git prints; None if there is no git, it fails or takes long."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return done.stdout.strip() or None


def append(folder: Path, row: Mapping[str, Any]) -> None:
    """Adds a row to the file of a run."""
    with open(folder / PROVENANCE, "a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def read(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run, those that can be read; none for runs of earlier versions."""
    rows, file = [], folder / PROVENANCE
    for line in file.read_bytes().splitlines() if file.exists() else []:
        try:
            rows.append(parse_object(line, str(file)))
        except ValueError:
            continue
    return rows
