"""`agentrl envs`: lists the environments, with the success of random and of optimal play, or checks them."""

import dataclasses
import itertools
import json
import math
import sys
from typing import TYPE_CHECKING

from rich.table import Table

from agentrl_jax.cli.checks import check_at_least_1, check_env, check_out_file
from agentrl_jax.environments.kinds import listed_names
from agentrl_jax.errors import UserError, counted
from agentrl_jax.services.catalog import NAMES, success_rule
from agentrl_jax.terminal import Terminal, literal, to_stderr

if TYPE_CHECKING:
    from envs_jax.checks.report import Report

MOST_NAMES = 12
"""Most names in one row of the rules of success."""


@dataclasses.dataclass(frozen=True)
class Envs:
    """List the environments with the success of random play and of optimal play with one action per turn.

    With --check, check one of them instead: exit code 1 says that a check failed.
    """

    levels: int = 512
    """Levels per environment on which both are computed. With the defaults of levels and seed, values come from a
    table, which has none for BabyAI. Computing them takes a while, for BabyAI's harder levels minutes each."""
    seed: int = 0
    """Seed of the levels."""
    check: str | None = None
    """Check this environment, a compiled one or a text environment, e.g. textcraft; or all."""
    seeds: int | None = None
    """Levels of a check, those of the seeds from 0 on, or items of a service; by default as many as suit it."""
    out: str | None = None
    """Also write the JSON of a check to this file, again after each environment of all."""
    json: bool = False
    """Print JSON instead of a table."""


def run(command: Envs) -> None:
    """Prints the environments, or the results of their checks."""
    check_at_least_1(command, "levels", "seeds")
    if command.check is not None:
        _check(command, command.check)
        return
    for name in ("seeds", "out"):
        if getattr(command, name) is not None:
            raise UserError.of(f"--{name}", getattr(command, name), "which is read only with --check; leave it out")
    import jax

    from envs_jax import known_baselines, registry
    from envs_jax.budget import Budget

    asked = (command.seed, command.levels) == (known_baselines.SEED, known_baselines.LEVELS)
    rows = []
    with Terminal(stderr=True).status("computing") as status:
        for name in registry.registered():
            spec = registry.spec(name)
            values = known_baselines.BASELINES.get(name, (math.nan, math.nan)) if asked else None
            if values is None:
                status.update(literal(f"computing {name}"))
                budget = Budget.one_per_turn(spec.max_actions)
                values = registry.baselines(name, jax.random.key(command.seed), command.levels, budget)
            random, optimal = (None if math.isnan(value) else value for value in values)
            rows.append((name, random, optimal, spec.max_actions, spec.description, spec.success_rule))
    if command.json:
        keys = ("env", "random", "optimal", "max_actions", "description", "success_rule")
        print(json.dumps([dict(zip(keys, row)) for row in rows]))
        return
    caption = f"Success within the action budget, one action a turn, exact on {counted(command.levels, 'level')}"
    table = Table(caption=f"{caption} of seed {command.seed}")
    terminal = Terminal()
    whole_tags = terminal.width >= 80  # tags can be copied; on a narrower terminal the columns after them need the room
    for title in ("environment", "random", "optimal", "actions", "description"):
        number = title in ("random", "optimal", "actions")
        no_wrap = number or (title == "environment" and whole_tags)
        table.add_column(title, justify="right" if number else "left", overflow="fold", no_wrap=no_wrap)
    for name, *rates, actions, description, _ in rows:
        shown = ("unknown" if rate is None else f"{rate:.1%}" for rate in rates)
        table.add_row(name, *shown, str(actions), description)
    terminal.print(
        table,
        _success_rules({name: rule for name, *_, rule in rows} | {name: success_rule(name) for name in NAMES}),
    )


def _success_rules(rules: dict[str, str]) -> Table:
    """The rules by name, those of services too, with one row for neighbors that share one."""
    table = Table(title="When an episode counts as solved", title_justify="left")
    for title in ("environments and services", "rule"):
        table.add_column(title, overflow="fold")
    for rule, group in itertools.groupby(rules, key=rules.__getitem__):
        names = tuple(group)
        # Many are the levels of one environment, whose names the table above lists.
        shown = names if len(names) <= MOST_NAMES else (names[0], "...", names[-1])
        table.add_row(", ".join(shown), rule)
    return table


def _check(command: Envs, asked: str) -> None:
    """Checks an environment, or `all`, prints the results, and exits with 1 if a check failed."""
    for name in ("levels", "seed"):
        if getattr(command, name) != getattr(Envs(), name):
            raise UserError.of(f"--{name}", getattr(command, name), "which --check does not read; give --seeds")
    from agentrl_jax.evaluate import environment_checks
    from agentrl_jax.io import atomic_write
    from envs_jax.checks import MOST_SEEDS

    known = listed_names()
    texts = ", ".join(name for name in NAMES if name in known)
    if asked in set(NAMES) - {*known}:
        raise UserError.of(
            "--check",
            asked,
            "a service without a self-check: this package has neither its environment nor its items, and plays it on "
            f"a server only; expected {texts}, a compiled environment or all",
        )
    if asked != "all":
        check_env(asked, "--check")
    if command.seeds is not None and command.seeds > MOST_SEEDS:
        raise UserError.of("--seeds", command.seeds, f"expected at most {MOST_SEEDS}")
    check_out_file(command.out)
    terminal = Terminal()
    reports: list[Report] = []
    names = known if asked == "all" else (asked,)
    for name in names:

        def progress(line: str, name: str = name) -> None:
            to_stderr(f"{name}: {line}")

        reports.append(environment_checks.check_environment(name, seeds=command.seeds, progress=progress))
        document = json.dumps(environment_checks.as_json(reports, names[len(reports) :]), allow_nan=False)
        if command.out is not None:
            with atomic_write(command.out) as file:
                file.write(document + "\n")
        if not command.json:
            _print_report(terminal, reports[-1])
    if command.json:
        print(document)
    elif len(reports) > 1:
        terminal.print(environment_checks.as_table(reports))
    if any(report.status == "fail" for report in reports):
        sys.exit(1)


def _print_report(terminal: Terminal, report: "Report") -> None:
    from agentrl_jax.evaluate import environment_checks

    terminal.print(environment_checks.as_table([report]))
    if report.difficulty:
        terminal.print(environment_checks.difficulty_table(report))
    for result in report.results:
        if result.status == "fail":
            case = f" For example {json.dumps(result.counterexample)}" if result.counterexample else ""
            line = f"{report.env}, {result.name} {result.status}: {result.reason}.{case}"
            terminal.print(line)
