"""Tables of the records of a folder, one for each panel, computed from the outcomes of the episodes."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.panels import Panel, get_panel, load_panels
from agentrl_jax.evaluate.records import Record, read_record
from agentrl_jax.evaluate.results import gap_closed
from agentrl_jax.evaluate.statistics import pass_at, success_interval
from agentrl_jax.strict_json import parse_object

PUBLISHED = Path(__file__).with_name("data") / "published.json"

MAX_FILES = 10_000
"""Most files of a folder."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One agent of a table; None for what is not known."""

    agent: str
    kind: str
    """run, scripted or published."""
    success: Mapping[str, float | int]
    """avg@k with its interval; only the mean if published."""
    samples: int | None = None
    """k; None for exact success."""
    greedy: Mapping[str, float | int] | None = None
    pass_at: Mapping[str, float | int] | None = None
    """pass@k of all k samples, if there are several."""
    gap_closed: float | None = None
    """Share of the difference between random and optimal play within the agent's limits."""
    turns: float | None = None
    tokens: float | None = None
    """Means of an episode."""
    limit: int | None = None
    """Most turns of an episode."""
    seen: int | None = None
    """Levels that the agent learned from."""
    parameters_sha256: str | None = None
    source: str = ""
    """Name of the record's file, or the publication."""


@dataclasses.dataclass(frozen=True)
class Leaderboard:
    """The tables by name of the panel, best first, and what was left out."""

    tables: Mapping[str, list[Row]]
    left_out: list[str]
    """One line for each file that was not used, which says why."""


def make_leaderboard(folder: str, panel: str | None = None) -> Leaderboard:
    """Reads all `.json` files of a folder, and of folders in it, as records.

    With `panel`, only its table is made. A panel's published figures are added if the folder has a record of it.

    Raises:
        UserError: there is no such folder or panel, or it has too many files.
    """
    if not Path(folder).is_dir():
        raise UserError(f"{folder}: there is no such folder; expected one with records of `agentrl eval --panel --out`")
    if panel is not None:
        get_panel(panel)
    files = sorted(Path(folder).rglob("*.json"))
    if len(files) > MAX_FILES:
        raise UserError(
            f"{folder}: has {len(files)} files, expected at most {MAX_FILES}; name a folder of records only"
        )
    tables: dict[str, list[Row]] = {}
    left_out = []
    for file in files:
        try:
            record = read_record(file)
            row = row_of(record, str(file.relative_to(folder)))
        except ValueError as error:
            left_out.append(str(error) if str(file) in str(error) else f"{file}: {error}")
            continue
        if panel in (None, record.panel.name):
            tables.setdefault(record.panel.name, []).append(row)
    for name, rows in tables.items():
        rows += published().get(name, [])
        rows.sort(key=lambda row: -row.success["mean"])
    return Leaderboard({name: tables[name] for name in load_panels() if name in tables}, left_out)


def row_of(record: Record, source: str) -> Row:
    """The row of a record, computed from its outcomes.

    Raises:
        ValueError: the record is of other levels than the panel's, or its outcomes do not fit together.
    """
    panel = load_panels().get(record.panel.name)
    if panel is None:
        raise ValueError(f"is of the panel {record.panel.name!r}, which this version of the package does not have")
    if record.panel.sha256 != panel.sha256:
        raise ValueError(
            f"is of {panel.name} with digest {record.panel.sha256[:16]}, expected {panel.sha256[:16]}: other levels"
        )
    check_outcomes(record, panel)
    outcomes, samples = record.outcomes, np.array(record.outcomes.samples)
    success = samples.mean(axis=1)
    several = samples.shape[1] > 1
    gap = None
    if outcomes.random is not None and outcomes.optimal is not None:
        gap = gap_closed(float(success.mean()), float(np.mean(outcomes.random)), float(np.mean(outcomes.optimal)))
    return Row(
        agent=record.agent.name if record.agent.iteration is None else f"{record.agent.name}, {record.agent.iteration}",
        kind=record.agent.kind,
        success=success_interval(success),
        samples=None if outcomes.exact else samples.shape[1],
        greedy=None if outcomes.greedy is None else success_interval(outcomes.greedy),
        pass_at=success_interval(pass_at(samples == 1, samples.shape[1])) if several else None,
        gap_closed=gap,
        turns=record.mean_turns,
        tokens=record.mean_tokens,
        limit=record.decoding.turns,
        seen=None if record.seen is None else record.seen.seen_levels,
        parameters_sha256=record.agent.parameters_sha256,
        source=source,
    )


def check_outcomes(record: Record, panel: Panel) -> None:
    """Refuses outcomes that are not those of a panel's levels; a `ValueError` says why."""
    outcomes, count = record.outcomes, 1 if record.outcomes.exact else record.decoding.samples
    parts = {name: getattr(outcomes, name) for name in ("samples", "greedy", "random", "null", "optimal", "categories")}
    for name, values in parts.items():
        if values is not None and len(values) != len(panel):
            raise ValueError(f"outcomes.{name} are of {len(values)} levels; {panel.name} has {len(panel)}")
    for number, row in enumerate(outcomes.samples):
        if len(row) != count:
            raise ValueError(f"outcomes.samples has {len(row)} outcomes of level {number}; expected {count}")
        if not outcomes.exact and not {*row} <= {0.0, 1.0}:
            raise ValueError(f"outcomes.samples of level {number} are not all 0 or 1")
    if outcomes.greedy is not None and not {*outcomes.greedy} <= {0.0, 1.0}:
        raise ValueError("outcomes.greedy are not all 0 or 1")


@functools.cache
def published() -> dict[str, list[Row]]:
    """Published figures by panel; they have no outcomes, and so no intervals."""
    entries = parse_object(PUBLISHED.read_bytes(), str(PUBLISHED))

    def row(agent: str, percent: float, entry: Mapping[str, Any]) -> Row:
        return Row(agent, "published", {"mean": percent / 100}, samples=1, source=entry["source"])

    return {
        panel: [row(agent, percent, entry) for agent, percent in entry["success_percent"].items()]
        for panel, entry in entries.items()
    }
