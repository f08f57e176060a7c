"""`agentrl eval`: the success of a run, or of a scripted policy, on held-out levels."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table

from agentrl_jax.cli import eval_api
from agentrl_jax.cli.api_options import refuse
from agentrl_jax.cli.checks import check_at_least_1, check_env, check_items, check_level_file, check_out_file
from agentrl_jax.errors import UserError, counted
from agentrl_jax.io import atomic_write
from agentrl_jax.terminal import Terminal, literal, to_stderr


@dataclasses.dataclass(frozen=True)
class Eval:
    """Evaluate a checkpoint of a run on held-out levels, sampled and greedy; or a scripted policy, or an API model."""

    run: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="RUN")] = None
    """Folder of the run, e.g. runs/demo; left out with --policy."""
    checkpoint: str = "last"
    """last, best (the highest success in validation), the step of a checkpoint, or all: one table of all checkpoints,
    with differences from the first and the best, paired by level; with --out FILE.json also FILE.png."""
    env: str | None = None
    """Another environment than the run's first one; `agentrl envs` lists them. With --policy or --api also a text
    environment, e.g. textcraft, or the import path of a Python environment. A run on Python environments plays only
    those that are named here, or installed."""
    policy: str | None = None
    """Scripted policy to evaluate instead of a run, in the service --env: oracle, random, null (names no action),
    constant (repeats --action), or another one of the environment, such as always_search in searchqa."""
    action: str | None = None
    """The action of the policy constant, e.g. "move forward"."""
    items: str | None = None
    """Items for a scripted policy or an API model: numbers such as 0-99, or an item file; default: the published
    test items of babyai; otherwise, or with --episodes, so many (200) by --seed."""
    plays: int | None = None
    """Episodes of a scripted policy on each item; default: 56 of random play in babyai without --url, else 1."""
    turns: int | None = None
    """Limit of turns per episode of a scripted policy or an API model; default: the service's usual limit, or
    5 where an API model plays a compiled environment."""
    url: str = "local"
    """Address of the environment's server for a scripted policy or an API model; local: in this process."""
    token_file: str = ""
    """File with the token of this server."""
    workers: int | None = None
    """Episodes that a scripted policy plays at once; default: 4."""
    levels: str | None = None
    """File with the levels to play: Sokoban in XSB symbols or FrozenLake maps in S F H G, a blank line between two, or
    a .npy pack. panel: the 90 items that AgentGym-RL tests BabyAI on; other-levels: 506 of the 22 levels of BabyAI
    that it does not use; both by AgentGym's rules."""
    panel: str | None = None
    """Panel to play, such as sokoban-6x6-v2: fixed test levels, seed and limit of actions, checked by their digest.
    With --policy: random, null or oracle. With --json: one record for `agentrl leaderboard`."""
    episodes: int | None = None
    """Held-out levels; default: evaluation.episodes of the run. With --levels every level is played once."""
    temperature: float | None = None
    """Sampling temperature; default: evaluation.temperature of the run, 0 for an API model."""
    samples: int = 1
    """Sampled episodes of a run, or of an API model, on each level; several also give pass@k (one of k succeeds) and
    pass^k (all do)."""
    best_of: int | None = None
    """Take one of so many samples on each level as the result, by --selector; plays at least so many samples."""
    selector: Literal["oracle", "majority", "shortest", "value", "logprob"] = "oracle"
    """Which sample is taken. oracle: one that succeeds (pass@N), which no agent can know; majority: with the most
    frequent answer, where answers are words; shortest: with the fewest tokens; value: with the highest value of the
    run's critic; logprob: with the highest mean log-probability of its tokens. An API model has the first three."""
    clusters: bool = False
    """Intervals for levels of one category (families of BabyAI, categories of items) that depend on each other."""
    seed: int | None = None
    """Seed of levels and sampling; default: evaluation.seed of the run."""
    against: str | None = None
    """Folder of another run of the same task, which plays the same levels; the differences have intervals with the
    levels as pairs."""
    json: bool = False
    """Print one JSON object with success.{mean,low,high,n} instead of a table."""
    out: str | None = None
    """File for the result with run, step, temperature, seed and code, which is replaced; with --panel a record for
    `agentrl leaderboard`; with --api the folder of the replies and results, where the same command goes on after a
    kill."""
    record: str | None = None
    """New folder for all episodes of the evaluation of a run, token by token, or of a scripted policy, for
    `agentrl view`, also with --compare, and `agentrl export --trajectories`. What an API model plays is in --out."""
    screenshots: bool = False
    """Keep the screenshots that the service gives (babyai: the whole level), in the folder of --record, or with --api
    of --out, for `agentrl view`. No agent sees them."""
    of_api: Annotated[eval_api.EvalApiOptions, tyro.conf.arg(name="")] = dataclasses.field(
        default_factory=eval_api.EvalApiOptions
    )


_OPTIONS = ("checkpoint", "env", "levels", "panel", "episodes", "temperature", "samples", "selector")
_OF_RUN = ("against", "best_of", "checkpoint", "clusters", "levels", "samples", "selector", "temperature")
_OF_SCRIPTED = ("action", "items", "plays", "turns", "url", "token_file", "workers")
_NOT_OF_API = ("run", "checkpoint", "policy", "action", "plays", "workers", "against", "record")


def run(command: Eval) -> None:
    """Prints the success of a run, of a scripted policy, or of an API model."""
    if command.best_of is None and command.selector != Eval().selector:
        raise UserError.of(
            "--selector", command.selector, "which is read only with --best_of; give it, or leave it out"
        )
    if command.of_api.api is not None:
        refuse(command, _NOT_OF_API, "without --api")
        eval_api.run(command)
        return
    refuse(command.of_api, [field.name for field in dataclasses.fields(command.of_api)], "with --api")
    if command.policy is None:
        refuse(command, _OF_SCRIPTED, "with --policy")
    else:
        refuse(command, _OF_RUN, "without --policy")
    if command.out is not None and command.panel is not None and command.against is not None:
        raise UserError.of("--out", command.out, "the file for a record of one run, but there is --against")
    if command.record is not None and command.against is not None:
        raise UserError.of(
            "--record",
            command.record,
            "the folder for one run, but there is --against; evaluate both runs without it, and compare their folders "
            "with agentrl view",
        )
    check_out_file(command.out)
    if command.policy is not None:
        _eval_scripted(command)
        return
    if command.run is None:
        raise UserError(
            "a run is missing; write `agentrl eval RUN`, or `agentrl eval --env ENV --policy oracle`", key="RUN"
        )
    if command.env is not None:
        check_env(command.env, "--env")
    check_level_file(command.levels)
    options = {name: getattr(command, name) for name in (*_OPTIONS, "clusters", "seed")}
    options["best_of"] = () if command.best_of is None else (command.best_of,)
    options["report"] = to_stderr
    if command.checkpoint == "all":
        _eval_all(command, options)
        return
    if command.against is None:
        from agentrl_jax.evaluate.eval_set import evaluate_run

        result = evaluate_run(command.run, record=command.record, screenshots=command.screenshots, **options)
    else:
        from agentrl_jax.evaluate.against import evaluate_against

        result = evaluate_against(command.run, command.against, **options)
    if command.against is None:
        _show(command, result, _print_result)
        return
    _keep(command, result)
    if command.json:
        print(json.dumps(result, allow_nan=False))
        return
    terminal = Terminal()
    for name, kind in ((command.run, "run"), (command.against, "against")):
        terminal.print(f"\n{name}")
        _print_result(result[kind])
    for key, how in (("difference", "sampled"), ("difference_greedy", "greedy")):
        difference = result[key]
        mean, low, high = (f"{100 * difference[bound]:+.1f}" for bound in ("mean", "low", "high"))
        line = f"{command.run} over {command.against}, {how}: {mean} points [{low}, {high}], paired over "
        line += counted(difference["n"], "level")
        terminal.print(line)


def _eval_all(command: Eval, options: dict[str, Any]) -> None:
    """Evaluates every checkpoint of a run."""
    given = {name: getattr(command, name) for name in ("against", "record", "best_of")}
    if command.panel is not None and command.out is not None:
        given["out"] = command.out  # a record is of one checkpoint
    for name, value in given.items():
        if value is not None:
            raise UserError.of(f"--{name}", value, "which is for one checkpoint, but --checkpoint is all; leave it out")
    if command.out is not None and Path(command.out).suffix == ".png":
        raise UserError.of("--out", command.out, "the name of the figure beside the result; give FILE.json")
    from agentrl_jax.evaluate.axis_tables import axis_tables
    from agentrl_jax.evaluate.checkpoints import evaluate_checkpoints
    from agentrl_jax.evaluate.interval_text import BASELINES, rate
    from agentrl_jax.evaluate.scaling import plot_scaling

    for name in ("checkpoint", "best_of", "selector"):
        del options[name]
    result = evaluate_checkpoints(command.run or "", **options)
    _keep(command, result)
    if command.out is not None:
        figure = Path(command.out).with_suffix(".png")
        plot_scaling(result, figure)
        to_stderr(f"figure: {figure}")
    if command.json:
        print(json.dumps(result, allow_nan=False))
        return
    terminal = Terminal()
    points = [{k: x for k, x in point.items() if k not in BASELINES} for point in result["axes"]["step"]]
    terminal.print(*axis_tables("step", points))
    settings = ", ".join(f"{name} {result[name]}" for name in ("env", "episodes", "temperature", "seed"))
    lines = {name: result["axes"]["step"][0].get(name) for name in BASELINES}
    lines = {name: rate(interval) for name, interval in lines.items() if interval is not None}
    terminal.print(literal(f"{result['run']}, {settings}; differences from the first step"), soft_wrap=True)
    terminal.print("; ".join(f"{name} {text}" for name, text in lines.items()), soft_wrap=True)
    if result["best"] is not None:
        terminal.print(f"best in validation: step {result['best']}")


def _show(command: Eval, result: dict[str, Any], table: Callable[[dict[str, Any]], None]) -> None:
    """Writes the result or the record of a panel, and prints it or a table."""
    if command.panel is None:
        text = json.dumps(result, allow_nan=False)
        _keep(command, result)
    else:
        from agentrl_jax.evaluate import records

        record = records.of_result(result)
        text = record.model_dump_json()
        if command.out is not None:
            records.write_record(record, command.out)
            to_stderr(f"record: {command.out}")
    if command.json:
        print(text)
    else:
        table(result)


def _keep(command: Eval, result: dict[str, Any]) -> None:
    """Writes a result that is no record of a panel into the file of --out, if given."""
    if command.out is None:
        return
    from agentrl_jax.runs.provenance import of_process

    with atomic_write(command.out) as file:
        json.dump({"made_by": of_process(), **result}, file, allow_nan=False, indent=1)
    to_stderr(f"result: {command.out}")


def _print_result(result: dict[str, Any]) -> None:
    from agentrl_jax.evaluate.interval_text import BASELINES, baseline_title, baseline_turns, cells
    from agentrl_jax.runs.live import gap_text, levels_line

    agent = result.get("policy", "agent, sampled")
    titles = {
        "success": agent,
        "success_greedy": "agent, greedy",
        "strict_success": "agent, sampled, strict",
        "strict_success_greedy": "agent, greedy, strict",
        **{name: baseline_title(result, name) for name in BASELINES},
    }
    table = Table(title="Success", title_justify="left")
    for name in ("", "mean", "low", "high", "levels"):
        table.add_column(name, justify="right" if name else "left")
    rows = [(title, result[key]) for key, title in titles.items() if key in result]
    for key, sign in (("pass_at", "@"), ("pass_all", "^")):
        rows += [(f"agent, pass{sign}{k}", interval) for k, interval in result.get(key, {}).items() if k != "1"]
    if best := result.get("best_of"):
        rows += [(f"agent, best of {k} by {best['selector']}", interval) for k, interval in best["success"].items()]
    for kind, part in result.get("categories", {}).items():
        rows += [(f"{kind}: {titles[key]}", interval) for key, interval in part.items()]
    for title, interval in rows:
        table.add_row(title, *cells(interval).values(), str(interval["n"]))
    terminal = Terminal()
    terminal.print(table)
    if "run" in result:
        settings = ", ".join(f"{name} {result[name]}" for name in ("step", "temperature", "seed"))
        terminal.print(literal(f"agent: {result['run']}, {settings}"), soft_wrap=True)
    if result.get("gap_closed") is not None:
        terminal.print(f"{agent}: {gap_text(result['gap_closed'])}")
    if "mean_turns" in result:
        tokens = f" and {result['mean_tokens']:.1f} sampled tokens" if "mean_tokens" in result else ""
        terminal.print(f"{agent}: {result['mean_turns']:.1f} turns{tokens} per episode")
    if turns := baseline_turns(result):
        terminal.print(turns)
    if "seen" in result:
        terminal.print(levels_line(result["env"], result["seen"]))


def _eval_scripted(command: Eval) -> None:
    if command.run is not None or (command.env is None) == (command.panel is None) or command.policy is None:
        raise UserError(
            "--policy evaluates a scripted policy: give --env ENV or --panel NAME, and no run", key="--policy"
        )
    check_at_least_1(command, "episodes", "plays", "turns", "workers")
    check_items(command)
    from agentrl_jax.evaluate.scripted import evaluate_on_panel, evaluate_scripted
    from agentrl_jax.evaluate.scripted_report import as_table, lines_of

    options = {name: getattr(command, name) for name in ("env", "policy", "episodes", *_OF_SCRIPTED)}
    options |= {
        "seed": command.seed or 0,
        "record": command.record,
        "screenshots": command.screenshots,
        "report": to_stderr,
    }
    if command.panel is None:
        result = evaluate_scripted(**options)
    else:
        for name in ("episodes", *_OF_SCRIPTED):
            if name != "plays" and getattr(command, name) != getattr(Eval(), name):
                raise UserError.of(f"--{name}", getattr(command, name), "which --panel fixes; leave it out")
        kept = {name: options[name] for name in ("plays", "seed", "record", "screenshots", "report")}
        result = evaluate_on_panel(command.policy, command.panel, **kept)

    def table(found: dict[str, Any]) -> None:
        Terminal().print(as_table(found), *lines_of(found))

    _show(command, result, table if "score" in result else _print_result)
