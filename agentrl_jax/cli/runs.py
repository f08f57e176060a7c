"""`agentrl runs`: what lies below a folder, compared: a table, files of it, a figure, and two runs side by side."""

import csv
import dataclasses
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.cells import cell_len
from rich.table import Table

from agentrl_jax.errors import UserError, counted, shortened
from agentrl_jax.io import atomic_write
from agentrl_jax.terminal import Terminal, to_stderr, visible

if TYPE_CHECKING:
    from agentrl_jax.runs.listed import Listed

_NOUNS = {"run": "run", "comparison": "variant", "evaluation": "recorded evaluation", "api": "API evaluation"}
_MARKS = {"validation": "*", "training": "+", "greedy": "°"}
_NOTES = {
    "validation": "*) in validation during training; held-out levels are played at the end",
    "training": "+) in training; neither validated nor evaluated yet",
    "greedy": "°) of greedy play",
}
_FIRST, _DATE, _INTERVAL = ("state", "iteration", "success"), "date", "95 %"
_RIGHT = ("iteration", "success")
_FOLDED, _BORDER = {"name": 16, "state": 12}, 3
"""Columns that may be folded, with the least letters that they have; and a column's border with its spaces."""
_LATEX = {c: rf"\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}


@dataclasses.dataclass(frozen=True)
class Runs:
    """List the runs and evaluations below a folder with their state, result and the settings in which they differ.

    `agentrl runs diff A B` shows in what two of them differ.
    """

    places: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[FOLDER | diff A B]")] = ()
    """Folder whose runs are listed, also those in folders below; default: runs. One that is called diff is ./diff."""
    csv: Annotated[str, tyro.conf.arg(metavar="FILE.csv")] = ""
    """File to write all columns to."""
    latex: Annotated[str, tyro.conf.arg(metavar="FILE.tex")] = ""
    """File to write the tables to, as LaTeX, without settings that follow from others."""
    json: bool = False
    """Print one JSON object."""
    plot: Annotated[str, tyro.conf.arg(metavar="METRIC")] = ""
    """Plot success, in training and in validation, or a metric of metrics.jsonl: a line for all runs that differ only
    in their seed, with a band from the lowest to the highest."""
    out: Annotated[str, tyro.conf.arg(metavar="FILE.png")] = ""
    """File for --plot; default: runs.METRIC.png in the folder."""


def run(command: Runs) -> None:
    """Prints the tables, and names on standard error what cannot be read."""
    if command.out and not command.plot:
        raise UserError.of("--out", command.out, "the file of --plot, which is missing; give it")
    if command.places[:1] == ("diff",):
        _diff(command)
        return
    if len(command.places) > 1:
        raise UserError.at(command.places[1], "is a second folder; give one, or `agentrl runs diff A B`")
    from agentrl_jax.runs.listing import KINDS, as_records, find_runs

    folder = command.places[0] if command.places else "runs"
    rows = find_runs(folder, lambda line: to_stderr(shortened(line, 400)))
    if command.json:
        print(json.dumps({"folder": folder, "rows": as_records(rows)}, allow_nan=False))
    elif not rows:
        raise UserError.at(folder, "holds no run and no evaluation; make one with `agentrl train`")
    kinds = {kind: [row for row in rows if row.kind == kind] for kind in KINDS}
    tables = {kind: _Cells(of_kind) for kind, of_kind in kinds.items() if of_kind}
    written = []
    if command.csv:
        with atomic_write(command.csv) as file:
            file.write(_csv(as_records(rows)))
        written.append(command.csv)
    if command.latex:
        with atomic_write(command.latex) as file:
            file.write("\n".join(map(_latex, tables.values())))
        written.append(command.latex)
    if command.plot:
        from agentrl_jax.runs.listing_plot import plot_runs

        out = command.out or os.path.join(folder, f"runs.{command.plot.replace(os.sep, '_')}.png")
        plot_runs(rows, command.plot, out)
        written.append(out)
    if command.json:
        return
    terminal = Terminal()
    for kind, cells in tables.items():
        title = f"{folder}: {counted(len(cells.rows), _NOUNS[kind])}"
        terminal.print(*_fitting(title, cells, terminal.width))
    terminal.print(*(f"written: {file}" for file in written))


class _Cells:
    """The rows of one kind as columns of texts by title; `spare` are titles in the order in which they are left out."""

    def __init__(self, rows: "Sequence[Listed]"):
        from agentrl_jax.runs.differing import titles, value_of
        from agentrl_jax.runs.listing import columns

        apart, follow = columns(rows)
        names = titles([*apart, *follow])
        taken = {"name", _DATE, _INTERVAL, *_FIRST}
        names = {key: key if name in taken else name for key, name in names.items()}
        self.rows, self.follow = rows, [names[key] for key in follow]
        found = {"name": [row.name for row in rows], "state": [row.state for row in rows]}
        found["iteration"] = [_of(row.iteration, row.iterations) for row in rows]
        found["success"] = [_success(row) for row in rows]
        found[_INTERVAL] = [_interval(row) for row in rows]
        found |= {names[key]: [shortened(value_of(row.settings, key), 40) for row in rows] for key in (*apart, *follow)}
        found[_DATE] = [row.date for row in rows]
        self.columns = {title: column for title, column in found.items() if any(column) or title == "success"}
        spare = [*reversed(follow), _DATE, _INTERVAL, *reversed(apart)]
        self.spare = [title for key in spare if (title := names.get(key, key)) in self.columns]
        of = dict.fromkeys(row.result.of for row in rows if row.result is not None)
        self.notes = [_NOTES[name] for name in of if name in _NOTES]


def _of(done: int | None, configured: int | None) -> str:
    return "" if done is None else f"{done}" if configured is None else f"{done}/{configured}"


def _success(row: "Listed") -> str:
    return "" if row.result is None else f"{100 * row.result.mean:.1f}{_MARKS.get(row.result.of, '')}"


def _interval(row: "Listed") -> str:
    if row.result is None or row.result.low is None or row.result.high is None:
        return ""
    return f"{100 * row.result.low:.1f} to {100 * row.result.high:.1f}"


def _fitting(title: str, cells: _Cells, width: int) -> list[Table | str]:
    """The table with as many columns as fit, so that no number is folded, and lines below it."""
    widths = {name: max(map(cell_len, [name, *map(visible, column)])) for name, column in cells.columns.items()}
    least = widths | {name: min(widths[name], letters) for name, letters in _FOLDED.items()}
    left_out: list[str] = []
    for name in cells.spare:
        if sum(least.values()) + _BORDER * len(least) + 1 > width:
            left_out.insert(0, name)
            del least[name]
    room = width - sum(least.values()) - _BORDER * len(least) - 1
    table = Table(title=title, title_justify="left")
    for name, letters in least.items():
        more = max(0, min(room, widths[name] - letters))
        room -= more
        justify = "right" if name in _RIGHT else "left"
        fold = {"overflow": "fold", "no_wrap": name not in _FOLDED, "width": letters + more}
        table.add_column(name, justify=justify, **fold)  # type: ignore[arg-type]
    for row in zip(*(cells.columns[name] for name in least)):
        table.add_row(*row)
    return [table, *cells.notes, *_said(left_out, cells, width)]


def _said(left_out: Sequence[str], cells: _Cells, width: int) -> list[str]:
    """A line that names columns without room, of settings that follow from others only some."""
    follow = [name for name in left_out if name in cells.follow]
    names = [name for name in left_out if name not in cells.follow]
    if len(follow) > 3:
        follow = [f"{len(follow)} settings that follow from others, such as {follow[0]}"]
    return [f"left out to fit {width} columns: {', '.join([*names, *follow])}; --csv has all"] if left_out else []


def _csv(records: "Sequence[dict]") -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, records[0] if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def _latex(cells: _Cells) -> str:
    """A plain tabular, without the date and settings that follow from others."""
    columns = {title: column for title, column in cells.columns.items() if title not in (_DATE, *cells.follow)}
    form = "".join("r" if title in _RIGHT else "l" for title in columns)
    head, *rows = (
        " & ".join("".join(_LATEX.get(c, c) for c in shortened(cell)) for cell in row) + r" \\"
        for row in (list(columns), *zip(*columns.values()))
    )
    lines = [rf"\begin{{tabular}}{{{form}}}", r"\hline", head, r"\hline", *rows, r"\hline", r"\end{tabular}"]
    return "\n".join([*lines, *(f"% {note}" for note in cells.notes), ""])


def _diff(command: Runs) -> None:
    """Prints results and settings of two runs or evaluations in which they differ."""
    if len(command.places) != 3:
        raise UserError.of("diff", list(command.places[1:]), "expected two runs: `agentrl runs diff A B`")
    for option in ("csv", "latex", "plot"):
        if value := getattr(command, option):
            raise UserError.of(f"--{option}", value, "but diff compares two runs; list their folder instead")
    from agentrl_jax.runs.differing import differing, value_of
    from agentrl_jax.runs.listing import as_records, read_row

    rows: list[Listed] = []
    for place in command.places[1:]:
        row = read_row(Path(place), place, lambda line: to_stderr(shortened(line, 400)))
        if row is None:
            raise UserError.at(place, "is no run and no evaluation; give the folder of one, e.g. runs/demo")
        rows.append(row)
    settings = [row.settings for row in rows]
    differ = {key for part in differing(settings) for key in part}
    keys = [key for key in dict.fromkeys([*settings[0], *settings[1]]) if key in differ]
    if command.json:
        found = {key: [of_row.get(key) for of_row in settings] for key in keys}
        print(json.dumps({"rows": as_records(rows), "settings": found}, allow_nan=False))
        return
    table = Table()
    for name in ("", *(row.name for row in rows)):
        table.add_column(visible(name), overflow="fold")
    results = {"state": [row.state for row in rows], "iteration": [_of(r.iteration, r.iterations) for r in rows]}
    results |= {"success": [_success(row) for row in rows], _INTERVAL: [_interval(row) for row in rows]}
    results |= {_DATE: [row.date for row in rows]}
    for name, texts in results.items():
        table.add_row(name, *texts, end_section=name == _DATE)
    for key in keys:
        table.add_row(key, *(value_of(of_row, key) or "-" for of_row in settings))
    notes = dict.fromkeys(_NOTES[row.result.of] for row in rows if row.result and row.result.of in _NOTES)
    Terminal().print(table, *notes)
