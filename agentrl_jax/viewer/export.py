"""Writes the page: one HTML file that holds its program and its data and makes no request."""

import base64
import gzip
import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from agentrl_jax.errors import UserError
from agentrl_jax.io import atomic_write
from agentrl_jax.runs.remote import is_remote
from agentrl_jax.viewer.episodes import QUANTIZED

LARGEST = 400 * 2**20
"""Characters that a page may have; browsers refuse texts of 512 MiB."""

_DATA = "<!--data-->"
_POLICY = "default-src 'none'"


class PageData(Protocol):
    """What a page shows: a run (`data.RunData`) or a log of another program (`log_data.LogData`)."""

    place: str
    """Where it is: a folder, a file, or an address in an object store."""
    remedy: str
    """What helps if the page would be too large."""

    levels: frozenset[tuple[str, str]]
    """Task and level, 16 hexadecimal digits, of the episodes that count in a comparison; known after `refresh`."""

    def refresh(self) -> tuple[dict[str, Any], list[bytes]]:
        """Returns what the page's index says about it, and its blocks."""


class LiveData(PageData, Protocol):
    """What a page shows of something that may still grow."""

    source: Path
    """The folder or file on this machine."""

    def stamp(self) -> str:
        """A text that changes with it."""


def page(runs: Sequence[PageData], *, live: str = "") -> str:
    """Returns the HTML of one run or log, or of two runs that are compared.

    The data are base64, so that no text of a model can end the element that holds it.

    Args:
        runs: one run or log, or two runs.
        live: if not empty, the page asks the server that it came from whether this text is still the newest.

    Raises:
        UserError: a run has no rollouts, or the page would be larger than `LARGEST`.
    """
    blocks: list[bytes] = []
    precision = {name: known._asdict() for name, known in QUANTIZED.items()}
    index: dict[str, Any] = {"version": 1, "live": live, "precision": precision, "runs": []}
    for run in runs:
        entry, packed = run.refresh()
        index["runs"].append({**entry, "first_block": len(blocks)})
        blocks.extend(packed)
    for entry, name in zip(index["runs"], _distinct_names(runs, [entry["name"] for entry in index["runs"]])):
        entry["name"] = name
    text = json.dumps(index, allow_nan=False).encode()
    parts = [("index", gzip.compress(text, mtime=0)), *((f"block-{i}", block) for i, block in enumerate(blocks))]
    if (size := sum(4 * len(part) // 3 for _, part in parts)) > LARGEST:
        raise UserError.at(
            runs[0].place,
            f"its page would have {size >> 20} MiB, expected at most {LARGEST >> 20}; {runs[0].remedy}",
            size >> 20,
        )
    shell = resources.files("agentrl_jax.viewer").joinpath("page.html").read_text(encoding="utf-8")
    if live:
        shell = shell.replace(_POLICY, f"{_POLICY}; connect-src 'self'", 1)
    before, after = shell.split(_DATA)
    elements = (f'<script type="text/plain" id="{name}">{base64.b64encode(p).decode()}</script>' for name, p in parts)
    return "".join([before, "\n".join(elements), after])


def _distinct_names(runs: Sequence[PageData], names: list[str]) -> list[str]:
    """The names, or, where two are equal, the shortest ends of the paths by which the two differ."""
    if len(set(names)) == len(names):
        return names
    places = [run.place if is_remote(run.place) else Path(run.place).resolve().as_posix() for run in runs]
    parts = [place.strip("/").split("/") for place in places]
    ends = (["/".join(each[-count:]) for each in parts] for count in range(2, max(map(len, parts)) + 1))
    return next((found for found in ends if len(set(found)) == len(found)), names)


def write_page(file: str | os.PathLike[str], runs: Sequence[PageData]) -> int:
    """Writes the page of one run or log, or of two runs, into a file, which is replaced atomically.

    Returns its size in bytes.

    Raises:
        UserError: as `page`.
        OSError: the file cannot be written.
    """
    data = page(runs).encode()
    with atomic_write(file, binary=True) as stream:
        stream.write(data)
    return len(data)
