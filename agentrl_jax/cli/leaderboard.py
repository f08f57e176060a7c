"""`agentrl leaderboard`: tables of the records of a folder."""

import dataclasses
import json
import sys
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentrl_jax.errors import UserError, shortened

_COLUMNS = ("agent", "success", "95 %", "k", "greedy", "pass@k", "gap", "turns", "tokens", "seen", "source")


@dataclasses.dataclass(frozen=True)
class Leaderboard:
    """Compare the records of a folder, panel by panel; everything is computed from the outcomes of the episodes."""

    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FOLDER")]
    """Folder with records of `agentrl eval --panel NAME --out FILE.json`."""
    panel: str | None = None
    """Only the table of this panel."""
    json: bool = False
    """Print one JSON object."""
    markdown: bool = False
    """Print tables in Markdown."""


def run(command: Leaderboard) -> None:
    """Prints the tables, and names on standard error what was left out."""
    if command.json and command.markdown:
        raise UserError("--json and --markdown are both given; expected one of them")
    from agentrl_jax.evaluate.leaderboard import make_leaderboard
    from agentrl_jax.evaluate.panels import get_panel

    found = make_leaderboard(command.folder, command.panel)
    for line in found.left_out:
        print(f"left out: {shortened(line, 400)}", file=sys.stderr)
    if command.json:
        print(json.dumps(dataclasses.asdict(found), allow_nan=False))
        return
    if not found.tables:
        raise UserError(
            f"{command.folder}: holds no record that can be used; make one with `agentrl eval --panel --out`"
        )
    for name, rows in found.tables.items():
        panel = get_panel(name)
        title = f"{name} ({len(panel)} levels, {panel.sha256[:16]})"
        cells = [_cells(row) for row in rows]
        if command.markdown:
            _print_markdown(title, cells)
        else:
            table = Table(title=title, title_justify="left")
            for column in _COLUMNS:
                table.add_column(column, justify="left" if column in ("agent", "source") else "right", overflow="fold")
            for row in cells:
                table.add_row(*map(escape, row))
            Console().print(table)


def _cells(row: Any) -> list[str]:
    def percent(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f}"

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.1f}"

    interval = f"{percent(row.success['low'])} to {percent(row.success['high'])}" if "low" in row.success else ""
    turns = number(row.turns) if row.limit is None else f"{number(row.turns) or '?'} of {row.limit}"
    return [
        shortened(row.agent, 60) + (f" ({row.kind})" if row.kind != "run" else ""),
        percent(row.success["mean"]),
        interval,
        "exact" if row.samples is None else str(row.samples),
        percent(row.greedy and row.greedy["mean"]),
        percent(row.pass_at and row.pass_at["mean"]),
        percent(row.gap_closed),
        turns,
        number(row.tokens),
        "" if row.seen is None else str(row.seen),
        shortened(row.source, 60),
    ]


def _print_markdown(title: str, rows: list[list[str]]) -> None:
    print(f"\n**{title}**\n")
    for row in ([*_COLUMNS], ["---", *["---:"] * (len(_COLUMNS) - 2), "---"], *rows):
        print("| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in row) + " |")
