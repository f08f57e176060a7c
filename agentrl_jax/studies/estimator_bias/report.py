"""Results of the estimators: a table on the terminal, in Markdown and in JSON, and a figure."""

import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from agentrl_jax.errors import UserError
from agentrl_jax.studies.estimator_bias import policies
from agentrl_jax.studies.estimator_bias.cases import CASES, OFF_POLICY
from agentrl_jax.studies.estimator_bias.exact import Bench, Result, Sampling

UNBIASED = 1e-9
"""Largest measured bias of an unbiased estimator, as a share of the gradient: float64 rounding."""


def run(
    *,
    group_size: tuple[int, ...],
    policy: str,
    drift: policies.Drift,
    direction: int,
    draws: int,
    only: str,
    seed: int,
    figure: str | None,
    format: str,
    report: Callable[[str], None],
) -> list[Result]:
    """Runs `agentrl bench estimators`: measures the estimators, prints the results and returns them.

    Args:
        group_size: sizes of the groups.
        policy: table or one_layer.
        drift: distance of the behavior policy; none: on policy, with the estimators for that.
        direction: seed of the direction of the drift.
        draws: number of sampled groups; 0 sums over all groups.
        only: measure only cases whose names contain this text.
        seed: seed of the sampling.
        figure: path of a figure; None for none.
        format: table, markdown or json.
        report: called with each finished case.

    Raises:
        UserError: an option is invalid; nothing has been measured then.
    """
    of_drift = CASES if drift == "none" else OFF_POLICY
    cases = [case for case in of_drift if only in case.name]
    if not cases:
        known = "; ".join(case.name for case in of_drift)
        raise UserError(f"--only is {only!r}, which no estimator under --drift {drift} is called; known are {known}")
    _check(group_size, direction, draws, figure)
    if direction and drift == "none":
        raise UserError(
            f"--direction is {direction}, which nothing reads without a drift; add --drift small, or leave it"
        )
    trained = {"table": policies.table, "one_layer": policies.one_layer}[policy]()
    bench = Bench(trained, policies.drifted(trained, drift, direction))
    drawn_by = "the policy itself"
    if drift != "none":
        log_ratio, kl, outside = bench.drift_size
        drawn_by = (
            f"another policy: mean |log ratio| {log_ratio:.3f}, KL {kl:.4f} a token, {outside:.0%} outside 0.8 to 1.28"
        )
    report(f"groups are drawn by {drawn_by}")
    sampling = Sampling(draws, seed) if draws else None
    results = []
    for size, case in itertools.product(group_size, cases):
        results.append(bench.measure(case, size, sampling))
        report(f"{len(results)}/{len(group_size) * len(cases)} {size} members, {case.name}")
    how = f"{draws} sampled groups a case" if draws else "all groups"
    if format == "table":
        title = f"Estimated against exact gradient: {bench.policy.name}, {how}, drawn by {drawn_by}"
        Console().print(table(results, title))
    else:
        print(markdown(results) if format == "markdown" else json.dumps(plain(results), allow_nan=False))
    if figure:
        draw(results, figure)
    return results


def _check(group_size: tuple[int, ...], direction: int, draws: int, figure: str | None) -> None:
    for size in group_size:
        if size < 2 or (size > 3 and not draws):
            raise UserError(
                f"--group_size is {size}; expected 2 or 3, beyond which there are too many groups to sum over: add "
                "--draws 20000 to sample them"
            )
    if direction < 0:
        raise UserError(f"--direction is {direction}; expected a seed, 0 or above")
    if draws < 0 or 0 < draws < 1000:
        raise UserError(f"--draws is {draws}; expected 0 or at least 1000, with fewer the error hides the bias")
    if figure and not Path(figure).absolute().parent.is_dir():
        raise UserError(f"--figure is {figure!r}, but its folder is not there; make it, or name another")


def biased(result: Result) -> bool:
    """Whether the mean is not a multiple of the true gradient, beyond rounding and three standard errors."""
    return result.bias > UNBIASED + 3 * result.error


def table(results: Sequence[Result], title: str) -> Table:
    """The results as a terminal table, one estimator per row."""
    drawn = Table(title=title, title_justify="left")
    for name in _columns(results):
        drawn.add_column(name, justify="left" if name in ("estimator", "note") else "right")
    for row in _rows(results):
        drawn.add_row(*row)
    return drawn


def markdown(results: Sequence[Result]) -> str:
    """The results as a Markdown table, one estimator per row."""
    columns = _columns(results)
    rows = [columns, ["---" if name in ("estimator", "note") else "---:" for name in columns], *_rows(results)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def plain(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The results for JSON."""
    return [
        {name: value for name, value in vars(r).items() if name not in ("case", "drift_size")}
        | r.drift_size._asdict()
        | dataclasses.asdict(r.case)
        | {"rule": r.case.rule.model_dump()}
        for r in results
    ]


def draw(results: Sequence[Result], path: str | os.PathLike[str]) -> None:
    """Plots the bias of every estimator, one mark per group size, sorted by the first; unbiased ones are at 0."""
    names = list(dict.fromkeys(result.case.name for result in results))
    first = {result.case.name: result.bias for result in reversed(results)}
    names.sort(key=first.__getitem__)
    drawn = Figure(figsize=(9, 0.24 * len(names) + 1.2), layout="constrained")
    axes = FigureCanvasAgg(drawn).figure.subplots()
    for group_size in dict.fromkeys(result.group_size for result in results):
        these = [result for result in results if result.group_size == group_size]
        places = [names.index(result.case.name) for result in these]
        errors = [3 * result.error for result in these]
        axes.errorbar([r.bias for r in these], places, xerr=errors, fmt="o", ms=4, label=f"{group_size} members")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel("bias: distance of the scaled mean from the true gradient, as a share of its length")
    axes.set_xlim(left=-0.005)
    axes.grid(axis="x", alpha=0.3)
    axes.legend()
    drawn.savefig(path, dpi=120)


def _columns(results: Sequence[Result]) -> list[str]:
    sizes = " / ".join(str(group_size) for group_size in dict.fromkeys(result.group_size for result in results))
    return ["estimator", f"bias, {sizes} members", "noise", "cosine", "own cosine", "scale", "note"]


def _rows(results: Sequence[Result]) -> list[list[str]]:
    by_name: dict[str, list[Result]] = {}
    for result in results:
        by_name.setdefault(result.case.name, []).append(result)

    def joined(these: list[Result], cell: Callable[[Result], str]) -> str:
        return " / ".join(cell(result) for result in these)

    return [
        [
            name,
            joined(these, _bias),
            joined(these, lambda r: f"{r.noise:.2f}"),
            joined(these, lambda r: f"{r.cosine:.3f}" if biased(r) else "1"),
            joined(these, lambda r: "" if r.own_cosine is None else f"{r.own_cosine:.3f}").strip(" /"),
            joined(these, lambda r: f"{r.scale:.2f}"),
            these[0].case.note,
        ]
        for name, these in by_name.items()
    ]


def _bias(result: Result) -> str:
    if result.error:
        return f"{result.bias:.3f} ± {result.error:.3f}"
    return f"{result.bias:.3f}" if biased(result) else "0"
