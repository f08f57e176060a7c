"""Tables of the records of a folder, one for each panel, computed from the outcomes of the episodes."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.errors import BadValue, UserError, shortened
from agentrl_jax.evaluate.panels import Panel, get_panel, load_panels
from agentrl_jax.evaluate.records import Record, read_record
from agentrl_jax.evaluate.results import gap_closed
from agentrl_jax.evaluate.scripted_items import LINES
from agentrl_jax.evaluate.statistics import paired_interval, pass_at, success_interval
from agentrl_jax.strict_json import parse_object
from envs_jax.budget import EXACT, optimal_label

PUBLISHED = Path(__file__).with_name("data") / "published.json"

MAX_FILES = 10_000
"""Most files of a folder."""

_SCRIPTED_TOKENS = 0.0
"""Scripted policies, and the reference policies of a record, sample no tokens."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One agent of a table; None for what is not known."""

    agent: str
    kind: str
    """run, scripted, api, published, or baseline: random, null or optimal play as a record of another agent has it."""
    success: Mapping[str, float | int]
    """avg@k with its interval; only the mean if published. Episodes that were not answered count as not solved."""
    samples: int | None = None
    """k; None for exact success, and for baselines, which may be either."""
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
    unanswered: Mapping[str, int] | None = None
    """Numbers of an API model's episodes without an outcome, see `records.Unanswered`; None if there are none."""
    answered: int | None = None
    """Number of its other episodes, if some were not answered."""
    success_answered: Mapping[str, float | int] | None = None
    """Success over these, if there are any. No row is ordered by it: a model could gain by not answering."""
    difference: Mapping[str, float | int] | None = None
    """avg@k minus that of the row that all are compared with, level by level (`statistics.paired_interval`)."""


_Rows = list[tuple[Row, np.ndarray | None]]
"""Rows, and for each the success on every level; None if only the mean is known."""


@dataclasses.dataclass(frozen=True)
class Leaderboard:
    """The tables by name of the panel, best first, and what was left out."""

    tables: Mapping[str, list[Row]]
    left_out: list[str]
    """One line for each file that was not used, which says why."""
    notes: Mapping[str, list[str]] = dataclasses.field(default_factory=dict)
    """What is to be said of a panel's table, by name."""


def make_leaderboard(folder: str, panel: str | None = None, against: str | None = None) -> Leaderboard:
    """Reads all `.json` files of a folder, and of folders in it, as records.

    With `panel`, only its table is made. A panel's published figures are added if the folder has a record of it, and
    random, null and optimal play from the first record that has them, unless there is a scripted record of the policy.
    With `against`, the name of an agent or of its record's file, the rows of each panel on which it was evaluated have
    the difference.

    Raises:
        UserError: there is no such folder, panel or agent, or several agents of a panel have the name, or the folder
            has too many files.
    """
    if not Path(folder).is_dir():
        raise UserError.at(folder, "there is no such folder; expected one with records of `agentrl eval --panel --out`")
    if panel is not None:
        get_panel(panel)
    files = sorted(Path(folder).rglob("*.json"))
    if len(files) > MAX_FILES:
        raise UserError.at(
            folder, f"has {len(files)} files, expected at most {MAX_FILES}; name a folder of records only", len(files)
        )
    tables: dict[str, _Rows] = {}
    records: dict[str, dict[str, Record]] = {}
    left_out, notes = [], {}
    for file in files:
        try:
            record = read_record(file)
            source = str(file.relative_to(folder))
            row = row_of(record, source)
        except ValueError as error:
            left_out.append(str(error) if str(file) in str(error) else f"{file}: {error}")
            continue
        if panel in (None, record.panel.name):
            tables.setdefault(record.panel.name, []).append((row, _of_levels(record)))
            records.setdefault(record.panel.name, {})[source] = record
    for name, rows in tables.items():
        found, notes[name] = baseline_rows(records[name])
        rows += [*found, *((row, None) for row in published().get(name, []))]
        rows.sort(key=lambda row: -row[0].success["mean"])
    ordered = {name: tables[name] for name in load_panels() if name in tables}
    if against is not None and ordered:
        ordered = _compared(ordered, against)
    return Leaderboard({name: [row for row, _ in rows] for name, rows in ordered.items()}, left_out, notes)


def _compared(tables: Mapping[str, _Rows], against: str) -> dict[str, _Rows]:
    """Tables with the differences from one agent, where a panel has it."""
    compared: dict[str, _Rows] = {}
    known, found = [], False
    for panel, rows in tables.items():
        named = [(row, success) for row, success in rows if success is not None]
        known += [f"{row.agent} ({row.source})" for row, _ in named]
        of_file = [pair for pair in named if pair[0].source == against and pair[0].kind != "baseline"]
        chosen = of_file or [pair for pair in named if pair[0].agent == against]
        if len(chosen) > 1:
            files = ", ".join(row.source for row, _ in chosen)
            raise UserError.of(
                "--against", against, f"the name of {len(chosen)} rows of {panel}; name the file of one: {files}"
            )
        compared[panel] = [(_minus(row, success, *chosen[0]), success) for row, success in rows] if chosen else rows
        found |= bool(chosen)
    if not found:
        names = shortened(", ".join(known), 600)
        raise UserError.of("--against", against, f"expected an agent, or the file of its record, among: {names}")
    return compared


def _minus(row: Row, success: np.ndarray | None, other: Row, other_success: np.ndarray | None) -> Row:
    if row is other or success is None or other_success is None:
        return row
    return dataclasses.replace(row, difference=paired_interval(success, other_success))


def _of_levels(record: Record) -> np.ndarray:
    """The success of a record's agent on each level; episodes that were not answered count as not solved."""
    return np.nan_to_num(np.array(record.outcomes.samples, np.float64)).mean(axis=1)


def baseline_rows(records: Mapping[str, Record]) -> tuple[_Rows, list[str]]:
    """Random, null and optimal play on a panel, each from the first record that has it, and which records differ.

    Scripted records have rows of their policies already. `records` are those of the panel by their file's name.
    """
    scripted = {record.agent.name for record in records.values() if record.agent.kind == "scripted"}
    rows: _Rows = []
    notes = []
    for name, policy in LINES.items():
        known = [(source, record) for source, record in records.items() if getattr(record.outcomes, name) is not None]
        if policy in scripted or not known:
            continue
        (source, first), *rest = known
        success = np.array(getattr(first.outcomes, name))
        agent = f"{name} play"
        others = [other for other, record in rest if not np.allclose(success, getattr(record.outcomes, name))]
        if others:
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            notes.append(
                f"{agent}: of {shortened(source)}; other in {shortened(others[0])}{more}: a record has it within its "
                "agent's limits"
            )
        row = Row(
            agent=optimal_label(first.optimal_is or EXACT, agent) if name == "optimal" else agent,
            kind="baseline",
            success=success_interval(success),
            gap_closed=_gap(first, float(success.mean())),
            turns=first.baseline_turns.get(name),
            tokens=_SCRIPTED_TOKENS,
            limit=first.decoding.turns,
            source=source,
        )
        rows.append((row, success))
    return rows, notes


def row_of(record: Record, source: str) -> Row:
    """The row of a record, computed from its outcomes.

    Raises:
        ValueError: the record is of other levels than the panel's, or its outcomes do not fit together.
    """
    panel = load_panels().get(record.panel.name)
    if panel is None:
        name = shortened(record.panel.name)
        raise BadValue(
            f"is of the panel {name!r}, which this version of the package does not have", key="panel", value=name
        )
    if record.panel.sha256 != panel.sha256:
        raise BadValue(
            f"is of the panel {panel.name} with digest {record.panel.sha256[:16]}, "
            f"expected {panel.sha256[:16]}: other levels",
            key="panel",
            value=panel.name,
        )
    check_outcomes(record, panel)
    outcomes, samples = record.outcomes, np.array(record.outcomes.samples, np.float64)  # None becomes NaN
    solved, success = np.nan_to_num(samples), _of_levels(record)
    several = samples.shape[1] > 1
    unanswered, of_level = outcomes.unanswered, [row[~np.isnan(row)] for row in samples]
    answered = [float(row.mean()) for row in of_level if len(row)]
    return Row(
        agent=record.agent.name if record.agent.iteration is None else f"{record.agent.name}, {record.agent.iteration}",
        kind=record.agent.kind,
        success=success_interval(success),
        samples=None if outcomes.exact else samples.shape[1],
        greedy=None if outcomes.greedy is None else success_interval(outcomes.greedy),
        pass_at=success_interval(pass_at(solved == 1, samples.shape[1])) if several else None,
        gap_closed=_gap(record, float(success.mean())),
        turns=record.mean_turns,
        tokens=_SCRIPTED_TOKENS if record.agent.kind == "scripted" else record.mean_tokens,
        limit=record.decoding.turns,
        seen=None if record.seen is None else record.seen.seen_levels,
        parameters_sha256=record.agent.parameters_sha256,
        source=source,
        unanswered=None if unanswered is None else unanswered.model_dump(),
        answered=None if unanswered is None else sum(map(len, of_level)),
        success_answered=success_interval(answered) if unanswered is not None and answered else None,
    )


def _gap(record: Record, success: float) -> float | None:
    """The share of the difference between the record's random and optimal play that a success closes."""
    random, optimal = record.outcomes.random, record.outcomes.optimal
    if random is None or optimal is None:
        return None
    return gap_closed(success, float(np.mean(random)), float(np.mean(optimal)))


def check_outcomes(record: Record, panel: Panel) -> None:
    """Refuses outcomes that are not those of a panel's levels; a `ValueError` says why."""
    outcomes, count = record.outcomes, 1 if record.outcomes.exact else record.decoding.samples
    parts = {name: getattr(outcomes, name) for name in ("samples", "greedy", "random", "null", "optimal", "categories")}
    for name, values in parts.items():
        if values is not None and len(values) != len(panel):
            raise BadValue(
                f"outcomes.{name} are of {len(values)} levels; {panel.name} has {len(panel)}",
                key=f"outcomes.{name}",
                value=len(values),
            )
    for number, row in enumerate(outcomes.samples):
        if len(row) != count:
            raise BadValue(
                f"outcomes.samples has {len(row)} outcomes of level {number}; expected {count}",
                key="outcomes.samples",
                value=len(row),
            )
        if not outcomes.exact and not {*row} <= {0.0, 1.0, None}:
            raise BadValue(
                f"outcomes.samples of level {number} are not all 0 or 1", key="outcomes.samples", value=number
            )
    if outcomes.greedy is not None and not {*outcomes.greedy} <= {0.0, 1.0}:
        raise BadValue("outcomes.greedy are not all 0 or 1", key="outcomes.greedy")


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
