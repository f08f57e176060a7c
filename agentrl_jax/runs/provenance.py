"""Where the numbers of a run come from: a row of provenance.jsonl for each process that has worked on it."""

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
_SECONDS = 5.0


def of_process(step: int) -> dict[str, Any]:
    """The row of this process, which goes on from `step`: version and commit, host, date (UTC), command line.

    `commit` is None unless the package is in a git checkout; `changed` says whether its files differ from the commit.
    """
    commit, changed = _commit(Path(__file__).parents[1])
    return {
        "step": step,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "command": shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]]),
        "version": installed_version(),
        "commit": commit,
        "changed": changed,
        "python": platform.python_version(),
    }


def _commit(package: Path) -> tuple[str | None, bool | None]:
    """Commit of a package's folder, and whether a file differs from it; None where git does not know its files."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(package), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS).stdout

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # else it may be installed inside another checkout
        return git("rev-parse", "HEAD").strip(), bool(git("status", "--porcelain", "--untracked-files=no", "."))
    except (OSError, subprocess.SubprocessError):
        return None, None


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
