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
from rich.table import Table

from agentrl_jax import safe_yaml
from agentrl_jax.algos.filters import FilterInputs
from agentrl_jax.algos.losses import ObjectiveInputs
from agentrl_jax.config import decode
from agentrl_jax.config.fields import is_own
from agentrl_jax.config.own import OwnKind
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.learner.own import Rule
from agentrl_jax.setup.own_rules import own_section
from agentrl_jax.setup.own_sources import import_rules
from agentrl_jax.studies.estimator_bias import policies, task
from agentrl_jax.studies.estimator_bias.cases import CASES, OFF_POLICY, own_case
from agentrl_jax.studies.estimator_bias.exact import Bench, Result, Sampling
from agentrl_jax.terminal import Terminal

_TEXTS = ("estimator", "teacher", "note")
"""Columns without numbers."""


def run(
    *,
    group_size: tuple[int, ...],
    policy: str,
    drift: policies.Drift,
    direction: int,
    num_groups: int,
    only: str,
    seed: int,
    figure: str | None,
    format: str,
    report: Callable[[str], None],
    own: str = "",
) -> list[Result]:
    """Runs `agentrl bench estimators`, whose options `cli.bench.Bench` describes: prints the results and returns them.

    Without a drift the estimators for on-policy batches are measured. `report` is called with each finished case.

    Raises:
        UserError: an option is invalid; nothing has been measured then.
    """
    all_cases = CASES if drift == "none" else OFF_POLICY
    cases = [case for case in all_cases if only in case.name]
    if not cases:
        known = "; ".join(case.name for case in all_cases)
        raise UserError.of("--only", only, f"which no estimator under --drift {drift} is called; known are {known}")
    _check(group_size, direction, num_groups, seed, figure)
    if own:
        cases = [own_case(_own_section(own, drift)), *cases]
    if direction and drift == "none":
        raise UserError.of("--direction", direction, "which needs a drift; add --drift small, or leave it out")
    trained = policies.NAMED[policy]()
    bench = Bench(trained, policies.drifted(trained, drift, direction))
    sampler = "the policy itself"
    if drift != "none":
        log_ratio, kl, outside = bench.drift_size
        sampler = (
            f"another policy: mean |log ratio| {log_ratio:.3f}, KL {kl:.4f} a token, {outside:.0%} outside 0.8 to 1.28"
        )
    report(f"groups are sampled by {sampler}")
    sampling = Sampling(num_groups, seed) if num_groups else None
    results = []
    for size, case in itertools.product(group_size, cases):
        with refusals():
            results.append(bench.measure(case, size, sampling))
        report(f"{len(results)}/{len(group_size) * len(cases)} {size} members, {case.name}")
    how = f"{num_groups} sampled groups a case" if num_groups else "all groups"
    if format == "table":
        title = f"Estimated against exact gradient: {bench.policy.name}, {how}, sampled by {sampler}"
        Terminal().print(table(results, title))
    else:
        print(markdown(results) if format == "markdown" else json.dumps(plain(results), allow_nan=False))
    if figure:
        draw(results, figure)
    return results


_SECTIONS: dict[type, str] = {ObjectiveInputs: "objective", FilterInputs: "filter"}


def _own_section(own: str, drift: policies.Drift) -> OwnKind:
    """The section of a function of the user: `module:function`, or YAML with its kind and its numbers."""
    given = safe_yaml.parse(own) if own.lstrip().startswith("{") else {"kind": own}
    if not isinstance(given, dict) or not is_own(given.get("kind")):
        raise UserError.of("--own", own, "expected module:function, or '{kind: module:function, NUMBER: 2.0}'")
    with refusals():
        module = import_rules("--own", given["kind"], stored=False)
        rule = getattr(module, given["kind"].partition(":")[2], None)
        section = _SECTIONS.get(rule.inputs, "advantage") if isinstance(rule, Rule) else "advantage"
        found = own_section("--own", getattr(decode({"algo": {section: given}}).algo, section))
    if section == "objective" and drift == "none":
        raise UserError.of("--own", own, "an objective, of which all are alike on policy; add --drift small or large")
    return found


def _check(group_size: tuple[int, ...], direction: int, num_groups: int, seed: int, figure: str | None) -> None:
    for size in group_size:
        if size < 2 or (size > 3 and not num_groups):
            raise UserError.of("--group_size", size, "expected 2 or 3; larger groups need --draws 20000")
    if direction < 0:
        raise UserError.of("--direction", direction, "expected a seed, 0 or above")
    if num_groups < 0 or 0 < num_groups < 1000:
        raise UserError.of("--draws", num_groups, "expected 0 or at least 1000, with fewer the error hides the bias")
    if num_groups % task.LEVELS:
        raise UserError.of("--draws", num_groups, f"expected a multiple of {task.LEVELS}, as many for each level")
    if seed < 0:
        raise UserError.of("--seed", seed, "expected a seed, 0 or above")
    if seed and not num_groups:
        raise UserError.of("--seed", seed, "but all groups are summed; add --draws, or leave it out")
    if figure and Path(figure).suffix != ".png":
        raise UserError.of("--figure", figure, "expected the path of a .png")
    if figure and not Path(figure).absolute().parent.is_dir():
        raise UserError.of("--figure", figure, "but its folder is not there; make it, or name another")


def biased(result: Result) -> bool:
    """Whether the mean is not a multiple of the true gradient, beyond rounding and three standard errors."""
    return result.bias > result.case.rounding + 3 * result.error


def table(results: Sequence[Result], title: str) -> Table:
    """The results as a terminal table, one estimator per row."""
    return terminal_table(_columns(results), _rows(results), title)


def markdown(results: Sequence[Result]) -> str:
    """The results as a Markdown table, one estimator per row."""
    return markdown_table(_columns(results), _rows(results))


def terminal_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> Table:
    """A table for the terminal, with numbers to the right."""
    shown = Table(title=title, title_justify="left")
    for name in columns:
        # Folded, because shortened names of two estimators can be the same.
        shown.add_column(name, justify="left" if name in _TEXTS else "right", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    return shown


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, with numbers to the right."""
    lines = [columns, ["---" if name in _TEXTS else "---:" for name in columns], *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def plain(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The results for JSON."""
    return [
        {name: value for name, value in vars(r).items() if name not in ("case", "drift_size")}
        | r.drift_size._asdict()
        | dataclasses.asdict(r.case)
        | {part: getattr(r.case, part).model_dump() for part in ("rule", "objective", "tokens")}
        | {"filter": r.case.filter and r.case.filter.model_dump()}
        for r in results
    ]


def draw(results: Sequence[Result], path: str | os.PathLike[str]) -> None:
    """Plots the bias of every estimator, one mark per group size, sorted by the first; unbiased ones are at 0."""
    first = {result.case.name: result.bias for result in reversed(results)}
    names = sorted(dict.fromkeys(result.case.name for result in results), key=first.__getitem__)
    drawing = Figure(figsize=(9, 0.24 * len(names) + 1.2), layout="constrained")
    axes = FigureCanvasAgg(drawing).figure.subplots()
    for group_size in dict.fromkeys(result.group_size for result in results):
        of_size = [result for result in results if result.group_size == group_size]
        y = [names.index(result.case.name) for result in of_size]
        errors = [3 * result.error for result in of_size]
        axes.errorbar([r.bias for r in of_size], y, xerr=errors, fmt="o", ms=4, label=f"{group_size} members")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel("bias: distance of the scaled mean from the true gradient, as a share of its length")
    axes.set_xlim(left=-0.005)
    axes.grid(axis="x", alpha=0.3)
    axes.legend()
    drawing.savefig(path, dpi=120)


def _columns(results: Sequence[Result]) -> list[str]:
    sizes = " / ".join(str(group_size) for group_size in dict.fromkeys(result.group_size for result in results))
    return ["estimator", f"bias, {sizes} members", "noise", "cosine", "own cosine", "limit", "scale", "note"]


def _rows(results: Sequence[Result]) -> list[list[str]]:
    by_name: dict[str, list[Result]] = {}
    for result in results:
        by_name.setdefault(result.case.name, []).append(result)

    return [
        [name, *(" / ".join(cells).strip(" /") for cells in zip(*map(_cells, of_case))), of_case[0].case.note]
        for name, of_case in by_name.items()
    ]


def _cells(r: Result) -> tuple[str, ...]:
    bias = f"{r.bias:.3f} ± {r.error:.3f}" if r.error else f"{r.bias:.3f}" if biased(r) else "0"
    own_cosine = "" if r.own_cosine is None else f"{r.own_cosine:.3f}"
    limit = "" if r.limit is None else f"{r.limit:.3f}" if r.limit > r.case.rounding else "0"
    limit += f" ± {r.limit_error:.3f}" if r.limit_error else ""
    cosine = f"{r.cosine:.3f}" if biased(r) else "1"
    return bias, f"{r.noise:.2f}", cosine, own_cosine, limit, f"{r.scale:.2f}"
