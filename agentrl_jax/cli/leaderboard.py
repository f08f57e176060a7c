"""`agentrl leaderboard`: tables of the records of a folder."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated, Any

import tyro
from rich.cells import cell_len
from rich.table import Table

from agentrl_jax.errors import UserError, shortened
from agentrl_jax.evaluate.interval_text import points, rate
from agentrl_jax.terminal import Terminal, to_stderr, visible

_COLUMNS = (
    *("agent", "success", "95 %", "difference", "k", "greedy"),
    *("pass@k", "gap", "turns", "tokens", "seen", "source"),
)

_LEFT_OUT = ("source", "seen", "k", "pass@k", "greedy", "tokens", "turns", "gap", "95 %", "difference")
"""Columns that a narrow terminal does not show, in the order in which they are left out."""

_LEFT_ALIGNED = ("agent", "source")

_AGENT_WIDTH, _BORDER = 20, 3
"""Letters for names of agents, which alone may be folded; and a column's border with its spaces."""


@dataclasses.dataclass(frozen=True)
class Leaderboard:
    """Compare the records of a folder, panel by panel; everything is computed from the outcomes of the episodes."""

    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FOLDER")]
    """Folder with records of `agentrl eval --panel NAME --out FILE.json`."""
    panel: str | None = None
    """Only the table of this panel."""
    against: str | None = None
    """Name of an agent, or file of its record, from which all others differ in a column of points, with intervals that
    have the levels as pairs."""
    json: bool = False
    """Print one JSON object."""
    markdown: bool = False
    """Print tables in Markdown."""


def run(command: Leaderboard) -> None:
    """Prints the tables, and names on standard error what was left out."""
    if command.json and command.markdown:
        raise UserError("--json and --markdown are both given; expected one of them", key="--json")
    from agentrl_jax.evaluate.leaderboard import make_leaderboard
    from agentrl_jax.evaluate.panels import get_panel
    from agentrl_jax.runs.listing import holds_runs

    found = make_leaderboard(command.folder, command.panel, command.against)
    if not found.tables and not command.json and holds_runs(command.folder):
        advice = f"`agentrl runs {shortened(command.folder)}` compares them"
        raise UserError.at(command.folder, f"holds runs, and no record of `agentrl eval --panel --out`; {advice}")
    for line in found.left_out:
        to_stderr(f"left out: {shortened(line, 400)}")
    if command.json:
        print(json.dumps(dataclasses.asdict(found), allow_nan=False))
        return
    if not found.tables:
        raise UserError.at(
            command.folder, "holds no record that can be used; make one with `agentrl eval --panel --out`"
        )
    for name, rows in found.tables.items():
        panel = get_panel(name)
        title = f"{name} ({len(panel)} levels, {panel.sha256[:16]})"
        if command.against is not None and any(row.difference for row in rows):
            title += f"; differences in points from {shortened(command.against, 60)}"
        cells = [_cells(row) for row in rows]
        notes = [*(_note(row) for row in rows if row.unanswered), *found.notes.get(name, ())]
        if command.markdown:
            _print_markdown(title, cells)
            for note in notes:
                print(f"\n{_escaped(note)}")
        else:
            terminal = Terminal()
            table, left_out = _fitting(title, cells, terminal.width)
            terminal.print(table, *left_out, *notes)


def _fitting(title: str, rows: Sequence[Sequence[str]], width: int) -> tuple[Table, list[str]]:
    """The table with as many columns as fit, so that no number is folded, and a line that names those that do not.

    Columns in which nothing is known are not shown either.
    """
    widths = {name: max(map(cell_len, column)) for name, *column in zip(_COLUMNS, *rows)}
    kept = {name: max(cell_len(name), widest) for name, widest in widths.items() if widest or name == "agent"}
    kept["agent"] = min(kept["agent"], _AGENT_WIDTH)
    left_out = []
    for name in _LEFT_OUT:
        if sum(kept.values()) + _BORDER * len(kept) + 1 <= width:
            break
        if name in kept:
            del kept[name]
            left_out.append(name)
    table = Table(title=title, title_justify="left")
    for name in kept:
        table.add_column(
            name, justify="left" if name in _LEFT_ALIGNED else "right", overflow="fold", no_wrap=name != "agent"
        )
    for row in rows:
        table.add_row(*(cell for name, cell in zip(_COLUMNS, row) if name in kept))
    names = ", ".join(left_out)
    return table, [f"left out to fit {width} columns: {names}; --markdown has all"] if left_out else []


def _cells(row: Any) -> list[str]:
    def percent(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f}"

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.1f}"

    interval = f"{percent(row.success['low'])} to {percent(row.success['high'])}" if "low" in row.success else ""
    turns = number(row.turns) + ("" if row.turns is None or row.limit is None else f" of {row.limit}")
    return [
        _name(row),
        percent(row.success["mean"]) + ("*" if row.unanswered else ""),
        interval,
        "" if row.difference is None else points(row.difference),
        "" if row.kind == "baseline" else "exact" if row.samples is None else str(row.samples),
        percent(row.greedy and row.greedy["mean"]),
        percent(row.pass_at and row.pass_at["mean"]),
        percent(row.gap_closed),
        turns,
        number(row.tokens),
        "" if row.seen is None else str(row.seen),
        shortened(row.source, 60),
    ]


def _name(row: Any) -> str:
    return shortened(row.agent, 60) + (f" ({row.kind})" if row.kind != "run" else "")


def _note(row: Any) -> str:
    """What the mark at the success of an API model means."""
    cut, refused = row.unanswered["length"], row.unanswered["refusal"]
    failed = f", {row.unanswered['failed']} failed" if row.unanswered["failed"] else ""
    found = (
        f"over the {row.answered} answered ones it is {rate(row.success_answered)}"
        if row.answered
        else "none was answered"
    )
    return (
        f"*) {_name(row)}: {cut} episodes cut by a limit of tokens and {refused} refused{failed} count as not solved; "
        f"{found}"
    )


def _escaped(text: str) -> str:
    return visible(text).replace("|", "\\|").replace("<", "&lt;")


def _print_markdown(title: str, rows: list[list[str]]) -> None:
    """The table with all columns in which anything is known."""
    known = [i for i, name in enumerate(_COLUMNS) if name == "agent" or any(row[i] for row in rows)]
    rules = ["---" if _COLUMNS[i] in _LEFT_ALIGNED else "---:" for i in known]
    print(f"\n**{_escaped(title)}**\n")
    for cells in ([_COLUMNS[i] for i in known], rules, *([row[i] for i in known] for row in rows)):
        print("| " + " | ".join(map(_escaped, cells)) + " |")
