"""The command `agentrl`: train, compare, eval, envs, serve, play, chat, export, plan, presets, diagnose, bench.

Whatever the user can put right ends as one line on standard error and exit code 2.
"""

import contextlib
import dataclasses
import io
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import tyro
from rich.console import Console
from rich.table import Table

from agentrl_jax.commands import Bench, Chat, Compare, Diagnose, Envs, Eval, Export, Plan, Play, Presets, Serve, Train
from agentrl_jax.config import Config, load_config
from agentrl_jax.errors import UserError

_TRAIN_HELP = """Train an agent: agentrl train FILE.yaml [--key value ...]

FILE.yaml holds any of the keys below (experiments/ has examples); keys given here win over the file. A run that was
stopped goes on from its last checkpoint when the same command is given again. With a file, --help shows its values."""


_GOES_ON = {
    "train": "; the same command goes on from the last checkpoint, if there is one",
    "compare": "; the same command goes on with the arm it was at",
}
"""What a command that was stopped does when it is given again."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Runs the command and leaves with its exit code.

    Args:
        argv: words after `agentrl`; those of the process if left out.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # boards hold symbols that some terminals cannot show
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax warns of what was asked of it
    try:
        _run(words)
    except UserError as error:
        print(f"agentrl: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"agentrl: stopped{_GOES_ON.get(words[0] if words else '', '')}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"agentrl: {error}; give a path that can be used, on a disk with room", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        what = str(error).splitlines()[0] if str(error) else "out of memory"
        print(f"agentrl: {what}; lower the number of groups, the batch or the size of the model", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


def _run(words: list[str]) -> None:
    if words[:1] == ["train"] and len(words) > 1:
        _train(words[1:])
        return
    overrides: list[str] = []
    if words[:1] == ["plan"] and not {"--help", "-h"} & set(words):
        words, overrides = _own_words(words)
    command = _parse(words or ["--help"])
    seed = getattr(command, "seed", None)
    if seed is not None and not 0 <= seed < 2**32:
        raise UserError(f"--seed is {seed}, expected a whole number from 0 to {2**32 - 1}")
    if isinstance(command, Plan):
        _plan(command, overrides)
    else:
        _COMMANDS[type(command)](command)


def _own_words(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of `agentrl plan` itself, and those that change its configuration."""
    own, others = words[:2], words[2:]
    rest: list[str] = []
    options = {field.name: field.type is bool for field in dataclasses.fields(Plan) if field.name != "file"}
    while others:
        word = others.pop(0)
        name = word.lstrip("-").partition("=")[0]
        group = own if name in options else rest
        group.append(word)
        takes_a_value = "=" not in word and not options.get(name, False)
        if takes_a_value and others:
            group.append(others.pop(0))
    return own, rest


def _plan(command: Plan, overrides: list[str]) -> None:
    config = load_config(command.file, [*overrides, "--devices", "0"])  # those of the topology
    from agentrl_jax.errors import refusals
    from agentrl_jax.parallel.topology import described_devices
    from agentrl_jax.train.plan import make_plan
    from agentrl_jax.train.plan_report import as_json, as_table

    with refusals():
        devices, memory = described_devices(command.topology)
        plan = make_plan(config, devices, command.shape, report=lambda line: print(line, file=sys.stderr))
    if command.json:
        print(json.dumps(as_json(plan, memory), allow_nan=False))
    else:
        Console().print(as_table(plan, memory))


def _presets(command: Presets) -> None:
    from agentrl_jax.algos.presets import PRESETS
    from agentrl_jax.config import decode, to_dict

    if command.name is None:
        if command.json:
            print(json.dumps({name: rule.about for name, rule in PRESETS.items()}))
            return
        table = Table(title="Presets", title_justify="left", show_header=False)
        for name, rule in PRESETS.items():
            table.add_row(name, rule.about)
        Console().print(table)
        return
    if command.name not in PRESETS:
        raise UserError(f"{command.name!r} is no preset; known are {', '.join(PRESETS)}")
    rule = PRESETS[command.name]
    values = to_dict(decode({"algo": {"preset": command.name}}))["algo"]
    rows = {name: (value, rule.sources.get(name, "default")) for name, value in values.items() if name != "preset"}
    if command.json:
        print(json.dumps({name: {"value": value, "source": source} for name, (value, source) in rows.items()}))
        return
    table = Table(title=f"{command.name}: {rule.about}", title_justify="left")
    for title in ("algo.", "value", "source"):
        table.add_column(title, overflow="fold")
    for name, (value, source) in rows.items():
        table.add_row(name, json.dumps(value), source, style=None if name in rule.sources else "dim")
    Console().print(table)


def _diagnose(command: Diagnose) -> None:
    from agentrl_jax.evaluate.diagnose import diagnose

    figure = command.figure or str(Path(command.run) / "diagnosis.png")
    found = diagnose(command.run, figure)
    if command.json:
        print(json.dumps(found | {"figure": figure}, allow_nan=False))
    else:
        print("\n".join([*found["lines"], f"figure: {figure}"]))


def _bench(command: Bench) -> None:
    from agentrl_jax.errors import refusals
    from agentrl_jax.truth.report import run

    options = dataclasses.asdict(command)
    del options["what"]  # there is one thing to measure
    with refusals():
        run(**options, report=lambda line: print(line, file=sys.stderr))


def _parse(words: list[str]) -> Any:
    """Reads the command line; what tyro prints about a mistake is brought down to one line."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.extras.subcommand_cli_from_dict(
                {kind.__name__.lower(): kind for kind in (Train, Plan, *_COMMANDS)},
                prog="agentrl",
                description="Multi-turn reinforcement learning of language-model agents.",
                args=words,
                use_underscores=True,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as end:
        if end.code in (0, None):
            raise
        _title, *lines = (line.strip(" │╭╮╰╯─") for line in complaint.getvalue().splitlines())
        raise UserError(" ".join(line for line in lines if line.strip("-"))) from None


def _train(words: list[str]) -> None:
    file = words[0] if not words[0].startswith("-") else None
    if "--help" in words or "-h" in words:
        default = load_config(file, [word for word in words[1:] if word not in ("--help", "-h")]) if file else Config()
        tyro.cli(
            Config,
            prog="agentrl train FILE.yaml",
            description=_TRAIN_HELP,
            default=default,
            args=["--help"],
            use_underscores=True,
            config=(tyro.conf.FlagConversionOff,),
        )
    if file is None:
        raise UserError(
            f"{words[0]!r} stands where the YAML file is expected; write `agentrl train FILE.yaml --key value`"
        )
    config = load_config(file, words[1:])
    from envs_jax.registry import make

    for index, task in enumerate(() if config.served else config.tasks):
        with _as_user_error(f"tasks.{index}"):
            make(task.env, **task.options)
    from agentrl_jax.train.loop import train

    train(config)


def _compare(command: Compare) -> None:
    from agentrl_jax.comparison_file import load_comparison
    from agentrl_jax.evaluate import comparison as reports
    from agentrl_jax.train.compare import compare

    comparison = load_comparison(command.file)
    stem = Path(command.file).stem
    out = Path(command.out or Path("runs") / stem)
    console = Console()
    records = compare(comparison, out, only=command.only, console=console)
    reports.draw(records, out / "curves.png", stem)
    (out / "report.md").write_text(reports.page(records, comparison.pairs, stem, "curves.png"), encoding="utf-8")
    table = Table(title="Success on held-out levels, sampled", title_justify="left")
    for name in ("arm", "start", "end", "low", "high", "gain"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for found in reports.findings(records):
        end = found.sampled
        rates = (f"{rate:.1%}" for rate in (found.start["mean"], end["mean"], end["low"], end["high"]))
        table.add_row(found.name, *rates, f"{100 * found.gain['mean']:+.1f}")
    console.print(table)
    console.print(f"report: {out / 'report.md'}", highlight=False)


def _eval(command: Eval) -> None:
    if command.policy is not None:
        _eval_scripted(command)
        return
    if command.run is None:
        raise UserError("a run is missing; write `agentrl eval RUN`, or `agentrl eval --env ENV --policy oracle`")
    if command.env is not None:
        _known(command.env, "--env")
    _readable(command.levels)
    from agentrl_jax.evaluate.panel import evaluate_run

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
        "random": "random play",
        "optimal": "optimal play",
    }
    table = Table(title="Success", title_justify="left")
    for name in ("", "mean", "low", "high", "levels"):
        table.add_column(name, justify="right" if name else "left")
    for key, title in titles.items():
        if key in result:
            rates = (f"{result[key][bound]:.1%}" for bound in ("mean", "low", "high"))
            table.add_row(title, *rates, str(result[key]["n"]))
    Console().print(table)


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
        seed=command.seed or 0,
        workers=command.workers,
        report=lambda line: print(line, file=sys.stderr),
    )
    if command.json:
        print(json.dumps(result, allow_nan=False))
        return
    Console().print(as_table(result))


def _envs(command: Envs) -> None:
    if command.levels < 1:
        raise UserError(f"--levels is {command.levels}, expected at least 1")
    import jax

    from envs_jax import registry

    rows = []
    with Console(stderr=True).status("computing") as status:
        for name in registry.registered():
            status.update(f"computing {name}")
            spec = registry.spec(name)
            values = registry.baselines(name, jax.random.key(command.seed), command.levels, spec.max_actions)
            random, optimal = (None if math.isnan(value) else value for value in values)
            rows.append((name, random, optimal, spec.max_actions, spec.description))
    if command.json:
        keys = ("env", "random", "optimal", "max_actions", "description")
        print(json.dumps([dict(zip(keys, row)) for row in rows]))
        return
    table = Table(caption=f"Success within the action budget, exact on {command.levels} levels of seed {command.seed}")
    for title in ("environment", "random", "optimal", "actions", "description"):
        number = title in ("random", "optimal", "actions")
        table.add_column(title, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for name, *rates, actions, description in rows:
        shown = ("unknown" if rate is None else f"{rate:.1%}" for rate in rates)
        table.add_row(name, *shown, str(actions), description)
    Console().print(table)


def _serve(command: Serve) -> None:
    from agentrl_jax.services.server.command import run

    run(command)


def _play(command: Play) -> None:
    _known(command.env, "env")
    _readable(command.levels)
    from agentrl_jax.evaluate.play import play

    play(command.env, style=command.style, think=command.think, seed=command.seed, levels=command.levels)


def _chat(command: Chat) -> None:
    if command.temperature < 0:
        raise UserError(f"--temperature is {command.temperature}, expected 0 or more")
    for name in ("max_tokens", "length"):
        if getattr(command, name) < 1:
            raise UserError(f"--{name} is {getattr(command, name)}, expected at least 1")
    _check_download(command)
    from agentrl_jax.evaluate.chat import chat

    chat(**dataclasses.asdict(command))


def _export(command: Export) -> None:
    _check_download(command)
    from agentrl_jax.train.export import export

    print(export(**dataclasses.asdict(command)))


def _check_download(command: Chat | Export) -> None:
    """Refuses options of a download where nothing would be downloaded."""
    from agentrl_jax.train.run_folder import is_run

    if command.revision and not command.online:
        raise UserError(f"--revision is {command.revision!r}, but nothing is downloaded without --online; add it")
    if command.online and is_run(command.model):
        raise UserError(
            f"{command.model}: is a run, whose configuration says where its model comes from (model.online); leave out "
            "--online"
        )


def _known(name: str, where: str) -> None:
    """Refuses the tag of an environment that is not registered."""
    from envs_jax.registry import spec

    with _as_user_error(where):
        spec(name)


@contextlib.contextmanager
def _as_user_error(where: str) -> Iterator[None]:
    """Passes on what the registry has against a name or an option as a message for the user."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def _readable(levels: str | None) -> None:
    if levels is not None and not Path(levels).is_file():
        what = "that is no file" if Path(levels).exists() else "there is no such file"
        raise UserError(f"--levels is {levels!r}, but {what}; give a text file with levels")


_COMMANDS: dict[type, Callable[[Any], None]] = {
    Compare: _compare,
    Eval: _eval,
    Envs: _envs,
    Serve: _serve,
    Play: _play,
    Chat: _chat,
    Export: _export,
    Presets: _presets,
    Diagnose: _diagnose,
    Bench: _bench,
}
"""What each command does, in the order of `--help`; train and plan read their own words."""
