"""Tables of points along an axis, such as success by turns or by attempts, for a narrow terminal."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.table import Table

from agentrl_jax.evaluate.interval_text import BASELINES, number, points, rate
from agentrl_jax.terminal import Terminal

_RATES = (
    *("success", "success_greedy", "success_answered", "success_all", "retry", "retry_greedy", "retry_answered"),
    *("retry_all", "pass_at", "pass_at_all", "pass_all", "best_of"),
)
_GROUPS: dict[str, dict[str, Callable[[Any], str]]] = {
    "Success": {
        **dict.fromkeys(_RATES, rate),
        **dict.fromkeys(("difference", "over_best"), points),
        **dict.fromkeys(("gap_closed", "gap_closed_all"), "{:.1%}".format),
    },
    "Null, random and optimal play": dict.fromkeys(BASELINES, rate),
    "Turns and tokens": {
        **dict.fromkeys(("mean_turns", "mean_tokens"), "{:.1f}".format),
        **dict.fromkeys(("retry_turns", "retry_tokens", "retry_tokens_read", "pass_at_tokens"), number),
        **dict.fromkeys(("tokens_read", "tokens_written"), "{:,}".format),
    },
}
"""Tables by title, each with its columns in their order, and how each is written."""

_BORDER = 3
"""Of a column, with its spaces."""


def axis_tables(axis: str, found: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """Tables of the points of an axis, without columns in which nothing is known; no word of a heading is broken.

    A point has its place on the axis by the name of the axis, and intervals or numbers by the names of columns.
    """
    for title, columns in _GROUPS.items():
        known = [name for name in columns if any(point.get(name) is not None for point in found)]
        if not known:
            continue
        rows = [[name.replace("_", " ") for name in (axis, *known)]]
        for point in found:
            cells = (columns[name](point[name]) if point.get(name) is not None else "-" for name in known)
            rows.append([str(point[axis]), *cells])
        table = Table(title=f"{title} by {axis}", title_justify="left")
        for heading, width in zip(rows[0], _widths(rows, Terminal().width)):
            table.add_column(heading, justify="right", overflow="fold", width=width)
        for row in rows[1:]:
            table.add_row(*row)
        yield table


def _widths(rows: Sequence[Sequence[str]], total: int) -> list[int]:
    """Widths of columns that fit a terminal: the widest ones give way, but not below their longest word."""
    texts = list(zip(*rows))
    widths = [max(map(cell_len, column)) for column in texts]
    least = [max(cell_len(word) for text in column for word in text.split()) for column in texts]
    for _ in range(sum(widths) + _BORDER * len(widths) + 1 - total):
        if wide := [i for i, width in enumerate(widths) if width > least[i]]:
            widths[max(wide, key=lambda i: widths[i])] -= 1
    return widths
