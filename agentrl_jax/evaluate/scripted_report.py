"""The result of `evaluate_scripted` as a table for the terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from agentrl_jax.evaluate.interval_text import BASELINES, baseline_title, baseline_turns, cells
from agentrl_jax.runs.live import gap_text

_TITLES = {"success": "solved", "score": "score", "strict_success": "strictly", "standard_error": "s.e."}


def as_table(result: Mapping[str, Any]) -> Table:
    """The policy, null, random and optimal play on the same items, and the policy on each category of them."""
    title = f"{result['policy']} in {result['env']}; scores of {result['full_score']:g}"
    title += f"; {result['plays']} plays of each item" if result["plays"] > 1 else ""
    table = Table(title=title, title_justify="left")
    whole = ("mean", "low", "high")
    error = ("standard_error",) if result["plays"] > 1 else ()
    parts = {"success": whole + error, "score": whole}
    if "strict_success" in result:  # leave out the intervals that would make the table too wide
        parts |= {"score": ("mean",), "strict_success": ("mean",)}
    columns = [_TITLES[name] if part == "mean" else _TITLES.get(part, part) for name in parts for part in parts[name]]
    for name in ("", "items", *columns):
        table.add_column(name, justify="right" if name else "left", overflow="fold", no_wrap=bool(name))
    beside = {baseline_title(result, name): _of_baseline(result, name) for name in BASELINES if name in result}
    for kind, row in {"all": result, **beside, **result.get("categories", {})}.items():
        shown = []
        for name, of_name in parts.items():
            known = cells(row[name], ".2f" if name == "score" else ".1%")
            known |= {"standard_error": f"{row[name]['standard_error']:.1%}"} if "standard_error" in row[name] else {}
            shown += [known.get(part, "-") for part in of_name]
        table.add_row(kind, str(row["success"]["n"]), *shown)
    return table


def lines_of(result: Mapping[str, Any]) -> Iterator[str]:
    """What stands below the table."""
    policy = result["policy"]
    if result.get("gap_closed") is not None:
        yield f"{policy}: {gap_text(result['gap_closed'])}"
    yield (
        f"{policy}: {result['mean_turns']:.1f} turns per episode, at most {result['turns']}, and "
        f"{result['mean_tokens']:.1f} sampled tokens"
    )
    if turns := baseline_turns(result):
        yield turns


def _of_baseline(result: Mapping[str, Any], name: str) -> dict[str, Any]:
    kinds = {kind: result[f"baseline_{kind}"] for kind in ("score", "strict_success") if f"baseline_{kind}" in result}
    return {"success": result[name], **{kind: of_names[name] for kind, of_names in kinds.items()}}
