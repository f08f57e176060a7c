"""The result of `evaluate_api` as a table for the terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from agentrl_jax.evaluate.axis_tables import axis_tables
from agentrl_jax.evaluate.interval_text import BASELINES, baseline_title, baseline_turns, cells
from agentrl_jax.runs.live import gap_text


def as_table(result: Mapping[str, Any]) -> Table:
    """Success of the model, and of null, random and optimal play on the same items."""
    table = Table(title=f"{result['model']} in {result['env']}: success", title_justify="left")
    for name in ("", "mean", "low", "high", "items"):
        table.add_column(name, justify="right" if name else "left")
    for title, interval in _rows(result):
        rates = list(cells(interval).values()) if interval else ["-"] * 3
        table.add_row(title, *rates, str(interval["n"]) if interval else "0")
    return table


def retry_tables(result: Mapping[str, Any]) -> Iterator[Table]:
    """Success, and what it costs, within 1, 2, ... attempts, of a result with `retry`."""
    return axis_tables("attempts", [{"attempts": k, **point} for k, point in result["retry"]["attempts"].items()])


def retry_lines_of(result: Mapping[str, Any]) -> Iterator[str]:
    """What stands below `retry_tables`."""
    found = result["retry"]
    tokens, cost = found["tokens"], "" if found["cost"] is None else f"; cost: {found['cost']:.4f}"
    yield (
        f"retries: {tokens['prompt_tokens']} tokens read and {tokens['completion_tokens']} written in "
        f"{tokens['replies']} replies{cost}; the other numbers are of first attempts"
    )
    if found["cut"]:
        yield f"{found['cut']} items: a reply of a retry was cut by a limit of tokens or refused, a failure here"
    yield found["note"]


def lines_of(result: Mapping[str, Any]) -> Iterator[str]:
    """What stands below the table."""
    episodes = result["episodes"]
    counts = ", ".join(f"{episodes[name]} {words}" for name, words in _STATUSES.items())
    yield f"{episodes['asked']} episodes: {counts}"
    if episodes["length"]:
        yield "cut ones are final in this folder: longer replies take a larger --max_tokens with another --out"
    shares = {which: result.get(f"gap_closed_{which}") for which in ("answered", "all")}
    for which, share in shares.items():
        if share is not None:
            yield f"over {which}: {gap_text(share)}"
    if result["score_answered"] is not None and result["full_score"] != 1:
        yield f"score over answered: {result['score_answered']['mean']:.2f} of {result['full_score']:g}"
    tokens = result["tokens"]
    turns = "" if result["turns_used"] is None else f"{result['turns_used']:.1f} turns an answered episode; "
    reasoning = f" ({tokens['reasoning_tokens']} of them reasoning)" if tokens["reasoning_tokens"] else ""
    yield (
        f"{turns}{tokens['prompt_tokens']} tokens read and {tokens['completion_tokens']} written{reasoning} in "
        f"{tokens['replies']} replies"
    )
    if of_lines := baseline_turns(result):
        yield of_lines
    if tokens["replies_without_usage"]:
        yield f"the server gave no numbers of tokens for {tokens['replies_without_usage']} replies, which count as 0"
    if result["cost"] is not None:
        yield f"cost: {result['cost']:.4f}"
    if result["unfinished"]:
        episode, why = next(iter(result["unfinished"].items()))
        yield f"unfinished: {episode}: {why}"


_STATUSES = {
    "answered": "answered",
    "length": "cut by a limit of tokens",
    "refusal": "refused",
    "failed": "failed",
    "unfinished": "unfinished",
}


def _rows(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    titles = {"success_answered": "over answered episodes", "success_all": "over all episodes"}
    yield from ((f"model, {title}", result[name]) for name, title in titles.items())
    if "strict_success_answered" in result:
        yield "model, strict, over answered", result["strict_success_answered"]
    for name, sign in (("pass_at", "@"), ("pass_all", "^")):
        found = result.get(name, {})
        yield from ((f"model, pass{sign}{k}", interval) for k, interval in found.items() if k != "1")
    if "best_of" in result:
        selector, chosen = result["best_of"]["selector"], result["best_of"]["success"]
        yield from ((f"model, best of {k} by {selector}", interval) for k, interval in chosen.items())
    yield from ((baseline_title(result, name), result[name]) for name in BASELINES if name in result)
    for kind, part in result.get("categories", {}).items():
        yield from ((f"{kind}: {title}", part[name]) for name, title in titles.items())
