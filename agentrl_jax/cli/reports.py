"""What the commands that report something do: presets, diagnose, bench, compare, eval, envs.

Heavy modules are imported by the function that needs them, so that every command starts quickly.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl_jax import stopping
from agentrl_jax.cli.checks import known, readable
from agentrl_jax.cli.commands import Bench, Compare, Diagnose, Envs, Eval, Presets
from agentrl_jax.errors import UserError
from agentrl_jax.services.catalog import NAMES


def presets(command: Presets) -> None:
    """Prints the learning rules that have a name, or one of them."""
    from agentrl_jax.config.load import decode, leaves, to_dict
    from agentrl_jax.config.presets import NAMES, read_preset

    if command.name is None:
        about = {name: read_preset(name).about for name in NAMES}
        if command.json:
            print(json.dumps(about))
            return
        table = Table(title="Presets", title_justify="left", show_header=False)
        for name, line in about.items():
            table.add_row(name, line)
        Console().print(table)
        return
    if command.name not in NAMES:
        raise UserError(f"{command.name!r} is no preset; known are {', '.join(NAMES)}")
    preset = read_preset(command.name)
    algo = to_dict(decode({"algo": {"preset": command.name}}))["algo"]
    values = {key: value for key, value in leaves(algo, lists=False) if key != "preset"}
    # A part of which a preset gives the kind alone stands under its own name there. What it sets comes first.
    sources = {key if key in values else f"{key}.kind": source for key, source in preset.sources.items()}
    rows = [*sources, *(key for key in values if key not in sources)]
    if command.json:
        print(json.dumps({key: {"value": values[key], "source": sources.get(key, "default")} for key in rows}))
        return
    table = Table(title=f"{command.name}: {preset.about}", title_justify="left")
    for title in ("algo.", "value", "source"):
        table.add_column(title, overflow="fold")
    for key in rows:
        source = sources.get(key, "default")
        table.add_row(key, json.dumps(values[key]), source, style=None if key in sources else "dim")
    Console().print(table)


def diagnose(command: Diagnose) -> None:
    """Prints whether a run has collapsed."""
    from agentrl_jax.evaluate.diagnose import diagnose

    figure = command.figure or str(Path(command.run) / "diagnosis.png")
    found = diagnose(command.run, figure)
    if command.json:
        print(json.dumps(found | {"figure": figure}, allow_nan=False))
    else:
        print("\n".join([*found["lines"], f"figure: {figure}"]))


def bench(command: Bench) -> None:
    """Prints what estimators of the policy gradient are worth."""
    from agentrl_jax.errors import refusals
    from agentrl_jax.studies.estimator_bias.report import run

    options = dataclasses.asdict(command)
    del options["what"]  # there is one thing to measure
    with refusals():
        run(**options, report=lambda line: print(line, file=sys.stderr))


def compare(command: Compare) -> None:
    """Plays the variants of a comparison and writes its report."""
    from agentrl_jax.config.comparison import load_comparison
    from agentrl_jax.studies import comparison_report as reports
    from agentrl_jax.studies.compare import compare

    comparison = load_comparison(command.file)
    stem = Path(command.file).stem
    out = Path(command.out or Path("runs") / stem)
    console = Console()
    with stopping.ends_with(lambda: "the same command goes on with the variant it was at"):
        records = compare(comparison, out, only=command.only, console=console)
    reports.draw(records, out / "curves.png", stem)
    (out / "report.md").write_text(reports.page(records, comparison.pairs, stem, "curves.png"), encoding="utf-8")
    table = Table(title="Success on held-out levels, sampled", title_justify="left")
    for name in ("variant", "start", "end", "low", "high", "gain"):
        table.add_column(name, justify="left" if name == "variant" else "right")
    for found in reports.findings(records):
        end = found.sampled
        rates = (f"{rate:.1%}" for rate in (found.start["mean"], end["mean"], end["low"], end["high"]))
        table.add_row(found.name, *rates, f"{100 * found.gain['mean']:+.1f}")
    console.print(table)
    console.print(f"report: {out / 'report.md'}", highlight=False)


def evaluate(command: Eval) -> None:
    """Prints the success of a run, or of a scripted player."""
    if command.policy is not None:
        _eval_scripted(command)
        return
    if command.run is None:
        raise UserError("a run is missing; write `agentrl eval RUN`, or `agentrl eval --env ENV --policy oracle`")
    if command.env is not None and command.env not in NAMES:
        known(command.env, "--env")
    readable(command.levels)
    from agentrl_jax.evaluate.eval_set import evaluate_run
    from agentrl_jax.runs.live import levels_line
    from envs_jax.budget import EXACT, optimal_label

    result = evaluate_run(
        command.run,
        env=command.env,
        levels=command.levels,
        episodes=command.episodes,
        temperature=command.temperature,
        seed=command.seed,
        report=lambda line: print(line, file=sys.stderr),
    )
    if command.json:
        print(json.dumps(result, allow_nan=False))
        return
    titles = {
        "success": "agent, sampled",
        "success_greedy": "agent, greedy",
        "null": "null play",
        "random": "random play",
        "optimal": optimal_label(result.get("optimal_is", EXACT), "optimal play"),
    }
    table = Table(title="Success", title_justify="left")
    for name in ("", "mean", "low", "high", "levels"):
        table.add_column(name, justify="right" if name else "left")
    for key, title in titles.items():
        if key in result:
            table.add_row(title, *_rates(result[key]))
    for kind, part in result.get("categories", {}).items():
        for key, interval in part.items():
            table.add_row(f"{kind}: {titles[key]}", *_rates(interval))
    Console().print(table)
    Console().print(levels_line(result["env"], result["seen"]), highlight=False)


def _rates(interval: Mapping[str, Any]) -> tuple[str, ...]:
    return (*(f"{interval[bound]:.1%}" for bound in ("mean", "low", "high")), str(interval["n"]))


def _eval_scripted(command: Eval) -> None:
    if command.run is not None or command.env is None or command.policy is None:
        raise UserError("--policy evaluates a scripted player: give --env ENV and no run")
    for name in ("episodes", "turns", "workers"):
        if (getattr(command, name) or 1) < 1:
            raise UserError(f"--{name} is {getattr(command, name)}, expected at least 1")
    from agentrl_jax.evaluate.scripted import as_table, evaluate_scripted

    result = evaluate_scripted(
        command.env,
        command.policy,
        items=command.items,
        episodes=command.episodes or 200,
        turns=command.turns,
        url=command.url,
        token_file=command.token_file,
        seed=command.seed or 0,
        workers=command.workers,
        report=lambda line: print(line, file=sys.stderr),
    )
    if command.json:
        print(json.dumps(result, allow_nan=False))
        return
    Console().print(as_table(result))


def envs(command: Envs) -> None:
    """Prints the environments."""
    if command.levels < 1:
        raise UserError(f"--levels is {command.levels}, expected at least 1")
    import jax

    from envs_jax import known_baselines, registry
    from envs_jax.budget import Budget

    asked = (command.seed, command.levels) == (known_baselines.SEED, known_baselines.LEVELS)
    rows = []
    with Console(stderr=True).status("computing") as status:
        for name in registry.registered():
            spec = registry.spec(name)
            values = known_baselines.BASELINES.get(name) if asked else None
            if values is None:
                status.update(f"computing {name}")
                budget = Budget.one_per_turn(spec.max_actions)
                values = registry.baselines(name, jax.random.key(command.seed), command.levels, budget)
            random, optimal = (None if math.isnan(value) else value for value in values)
            rows.append((name, random, optimal, spec.max_actions, spec.description))
    if command.json:
        keys = ("env", "random", "optimal", "max_actions", "description")
        print(json.dumps([dict(zip(keys, row)) for row in rows]))
        return
    caption = f"Success within the action budget, one action a turn, exact on {command.levels} levels"
    table = Table(caption=f"{caption} of seed {command.seed}")
    for title in ("environment", "random", "optimal", "actions", "description"):
        number = title in ("random", "optimal", "actions")
        table.add_column(title, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for name, *rates, actions, description in rows:
        shown = ("unknown" if rate is None else f"{rate:.1%}" for rate in rates)
        table.add_row(name, *shown, str(actions), description)
    Console().print(table)
