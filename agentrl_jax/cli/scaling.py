"""`agentrl scaling`: the success of a run by turns, tokens per response, samples and attempts with feedback."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from agentrl_jax.cli.checks import check_env, check_level_file, check_out_folder
from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.interval_text import number, points, rate
from agentrl_jax.services.catalog import NAMES


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Evaluate a run with more or less of one budget at a time, and plot success with random and optimal play."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    turns: str = ""
    """Turns of an episode, such as 5,10,20, also beyond those of training."""
    tokens: str = ""
    """Most tokens of a response, such as 8,16."""
    samples: str = ""
    """Samples of a level, such as 1,2,4,8."""
    attempts: str = ""
    """Most attempts at a level, such as 1,2,4: after a failure the level begins again, and the agent reads that it
    failed; beside them as many samples without feedback."""
    selector: Literal["oracle", "majority", "shortest", "value", "logprob"] | None = None
    """Also take the best of k samples by this selector, see `agentrl eval --help`."""
    checkpoint: str = "last"
    """last, best (the highest success in validation), or the step of a checkpoint."""
    env: str | None = None
    """Another environment than the run's first one."""
    levels: str | None = None
    """File with the levels to play, or a named set, as for `agentrl eval`."""
    panel: str | None = None
    """Panel whose levels are played."""
    episodes: int | None = None
    """Held-out levels; default: evaluation.episodes of the run."""
    temperature: float | None = None
    """Sampling temperature; default: evaluation.temperature of the run."""
    seed: int | None = None
    """Seed of levels and sampling; default: evaluation.seed of the run."""
    out: str | None = None
    """Folder for scaling.json and scaling.png; default: the run's."""
    record: str | None = None
    """New folder for the conversations of the largest number of --attempts, for `agentrl view`."""
    json: bool = False
    """Print the contents of scaling.json instead of a table."""


_OPTIONS = ("checkpoint", "env", "levels", "panel", "episodes", "temperature", "seed")


def run(command: Scaling) -> None:
    """Writes the JSON file and the figure, and prints a table."""
    axes = {name: _numbers(name, getattr(command, name)) for name in ("turns", "tokens", "samples", "attempts")}
    if command.env is not None and command.env not in NAMES:
        check_env(command.env, "--env")
    check_level_file(command.levels)
    if command.record is not None and not command.attempts:
        raise UserError(
            f"--record is {command.record}, the folder for the conversations of --attempts, which is missing; give it, "
            "or record an evaluation with agentrl eval"
        )
    out = Path(command.run if command.out is None else command.out)
    if command.out is not None:
        check_out_folder(command.out, out)
    from agentrl_jax.evaluate.scaling import plot_scaling, scale
    from agentrl_jax.io import atomic_write

    options = {name: getattr(command, name) for name in _OPTIONS}
    found = scale(
        command.run,
        **axes,
        selector=command.selector,
        record=command.record,
        report=lambda line: print(line, file=sys.stderr),
        **options,
    )
    text = json.dumps(found, allow_nan=False)
    with atomic_write(out / "scaling.json") as file:
        file.write(text + "\n")
    plot_scaling(found, out / "scaling.png")
    if command.json:
        print(text)
        return
    for axis, found_points in found["axes"].items():
        table = Table(title=f"Success by {axis}", title_justify="left")
        columns = [name for name in _COLUMNS if name in found_points[0]]
        for name in (axis, *columns):
            table.add_column(name.replace("_", " "), justify="right", no_wrap=name == axis)
        for point in found_points:
            table.add_row(str(point[axis]), *(_COLUMNS[name](point[name]) for name in columns))
        Console().print(table)
        if axis == "attempts":
            Console().print(found["retry"]["note"], highlight=False)
    Console().print(f"figure: {out / 'scaling.png'}", highlight=False)


_RATES = ("success", "success_greedy", "retry", "retry_greedy", "pass_at", "pass_all", "best_of")
_COLUMNS = {
    **dict.fromkeys(_RATES, rate),
    "difference": points,
    "retry_tokens": number,
    "pass_at_tokens": number,
    "random": rate,
    "optimal": rate,
}
"""Columns of a table in their order, if its axis has them, and how each is written."""


def _numbers(name: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdecimal() and len(part) < 7 for part in parts):
        raise UserError(f"--{name} is {text!r}; expected numbers with commas between them, such as 5,10,20")
    return tuple(map(int, parts))
