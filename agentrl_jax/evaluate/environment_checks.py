"""Self-checks of an environment by its name."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from agentrl_jax.environments.kinds import kind_of
from agentrl_jax.errors import MAX_FOREIGN, refusals, shortened
from agentrl_jax.text import grammar, tokenizer
from agentrl_jax.text.grammar import ResponseGrammar
from agentrl_jax.text.reference import parse_response
from envs_jax import registry
from envs_jax.checks import check_registered
from envs_jax.checks.report import Report, Result, skipped, verdict

SCHEMA = "agentrl-environment-checks-1"
"""Version of the JSON document."""


def check_environment(
    name: str, *, seeds: int | None = None, progress: Callable[[str], None] = lambda line: None
) -> Report:
    """Checks an environment; `seeds` are seeds or items, by default as many as it declares.

    A service whose package is missing has one result, which is skipped; one that cannot be started has one that fails.

    Raises:
        UserError: there is no such environment, or it cannot be played.
    """
    report: Report = kind_of(name).check(name, seeds=seeds, progress=progress)
    return report


def check_compiled(name: str, *, seeds: int | None, progress: Callable[[str], None]) -> Report:
    """Checks a compiled environment, with its action names."""
    with refusals():
        report = check_registered(name, seeds=seeds, progress=progress)
        progress("action names")
        parsed = action_names(registry.make(name)[0].actions)
    return dataclasses.replace(report, results=(*report.results, parsed))


def check_served(name: str, *, seeds: int | None, progress: Callable[[str], None]) -> Report:
    """Checks an environment as a service."""
    from agentrl_jax.evaluate.service_checks import check_service
    from agentrl_jax.services.catalog import get_service
    from agentrl_jax.services.environment import MissingPackageError

    try:
        service = get_service(name)
        service.make(False).close()
    except (ImportError, MissingPackageError) as error:
        return Report(name, "service", 0, 0.0, (skipped("available", str(error)),))
    except Exception as error:  # whatever keeps a service from starting is what a check has to report
        reason = f"it cannot be started: {type(error).__name__}: {shortened(error, MAX_FOREIGN)}"
        return Report(name, "service", 0, 0.0, (verdict("available", reason, {}),))
    return check_service(service, items=seeds, progress=progress)


def action_names(actions: Sequence[str]) -> Result:
    """Every action name, written as a response, is read back as its id: by the compiled grammar and by its oracle."""
    check = "action_names"
    words = tokenizer.load_small()
    for think in (False, True):
        try:
            format_ = ResponseGrammar(actions=tuple(actions), think=think, forced=False)
        except ValueError as error:
            return verdict(check, str(error), {"actions": len(actions)})
        before = "<think>I choose.</think>" if think else ""
        texts = [f"{before}<answer>{name}</answer>" for name in actions]
        read = _read(grammar.compile_grammar(format_, words), [words.encode(text) for text in texts])
        for number, (text, found) in enumerate(zip(texts, read)):
            expected = (number,)
            for reader, ids in (
                ("grammar", found),
                ("reference parser", parse_response(text.encode(), format_).actions),
            ):
                if ids != expected:
                    reason = f"the {reader} reads {actions[number]!r} as the action ids {list(ids)}, not [{number}]"
                    case = {"seed": None, "policy": None, "actions": [actions[number]], "found": list(ids)}
                    return verdict(check, reason, {"actions": len(actions)}, case)
    return verdict(check, "", {"actions": len(actions)})


def _read(table: grammar.GrammarTable, rows: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The action ids in rows of tokens; ids beyond the vocabulary, which fill them up, change nothing."""
    tokens = np.full((len(rows), max(map(len, rows))), np.iinfo(np.int32).max, np.int32)
    for filled, row in zip(tokens, rows):
        filled[: len(row)] = row

    def one(row: jax.Array) -> jax.Array:
        def step(state: grammar.GrammarState, token: jax.Array) -> tuple[grammar.GrammarState, None]:
            return grammar.advance(table, state, token), None

        return grammar.result(table, jax.lax.scan(step, grammar.start(table), row)[0]).actions

    found = np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(tokens)))
    return [tuple(ids[ids >= 0].tolist()) for ids in found]


def as_json(reports: Sequence[Report], unchecked: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the document of a command: `schema`, `status` and `environments`.

    The status is "fail" if one check failed, else "pass" if one passed, else "skipped". `unchecked` are the names of
    environments that are still to be checked; the status is that of the others.
    """
    found = {report.status for report in reports}
    status = next((status for status in ("fail", "pass") if status in found), "skipped")
    environments = [report.as_json() for report in reports]
    return {"schema": SCHEMA, "status": status, "environments": environments, "unchecked": list(unchecked)}


def as_table(reports: Sequence[Report]) -> Table:
    """Returns the table of a command: the checks of one environment, or a line for each of several."""
    if len(reports) == 1:
        return _of_one(reports[0])
    table = Table(title="Checks of environments", title_justify="left")
    for name in ("environment", "episodes", "passed", "skipped", "failed", "seconds"):
        table.add_column(name, justify="left" if name == "environment" else "right", overflow="fold")
    for report in reports:
        found = [sum(result.status == status for result in report.results) for status in ("pass", "skipped", "fail")]
        table.add_row(report.env, str(report.episodes), *map(str, found), f"{report.seconds:.0f}")
    return table


def _of_one(report: Report) -> Table:
    title = f"{report.env}: {report.episodes} episodes"
    table = Table(title=f"{title}, {report.seconds:.0f} s", title_justify="left")
    for name in ("check", "status", "found"):
        table.add_column(name, overflow="fold", no_wrap=name != "found")
    for result in report.results:
        table.add_row(result.name, result.status, result.reason or _words(result.numbers))
    return table


def difficulty_table(report: Report) -> Table:
    """Returns the difficulty profile of an environment as a table."""
    table = Table(title="Difficulty", title_justify="left")
    for name in ("actions of the solution", "levels", "random success"):
        table.add_column(name, justify="right")
    for row in report.difficulty:
        length = "unknown" if row["length"] is None else str(row["length"])
        table.add_row(length, str(row["levels"]), f"{row['random']:.1%}")
    return table


def _words(numbers: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in numbers.items())


def _short(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(map(_short, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
