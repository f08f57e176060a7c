"""`agentrl scaling`: the success of an agent by turns, tokens per response, samples and attempts with feedback."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from agentrl_jax.cli.api_options import ApiOptions, asked, refuse
from agentrl_jax.cli.checks import check_env, check_level_file, check_out_folder
from agentrl_jax.errors import UserError
from agentrl_jax.io import try_writing
from agentrl_jax.terminal import Terminal, to_stderr


@dataclasses.dataclass(frozen=True)
class Scaling:
    """Evaluate a run, or an API model, with more or less of one budget at a time; with null, random, optimal play."""

    run: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="RUN")] = None
    """Folder of the run; left out with --api."""
    turns: str = ""
    """Turns of an episode, such as 5,10,20, also beyond those of training."""
    tokens: str = ""
    """Most tokens of a response, such as 8,16."""
    samples: str = ""
    """Samples of a level, such as 1,2,4,8."""
    attempts: str = ""
    """Most attempts at a level, such as 1,2,4: after a failure the level begins again, and the agent reads that it
    failed; beside them as many samples without feedback, of an API model as far as --samples goes."""
    selector: Literal["oracle", "majority", "shortest", "value", "logprob"] | None = None
    """Also take the best of k samples by this selector, see `agentrl eval --help`."""
    checkpoint: str = "last"
    """last, best (the highest success in validation), or the step of a checkpoint."""
    env: str | None = None
    """Another environment than the run's first one; the environment of an API model, as for `agentrl eval`."""
    levels: str | None = None
    """File with the levels to play, or a named set, as for `agentrl eval`."""
    panel: str | None = None
    """Panel whose levels are played."""
    episodes: int | None = None
    """Held-out levels; default: evaluation.episodes of the run."""
    items: str | None = None
    """Items that an API model plays, as for `agentrl eval`."""
    url: str = "local"
    """Address of the environment's server for an API model; local: in this process."""
    token_file: str = ""
    """File with the token of this server."""
    temperature: float | None = None
    """Sampling temperature; default: evaluation.temperature of the run, 0 for an API model."""
    seed: int | None = None
    """Seed of levels and sampling; default: evaluation.seed of the run."""
    out: str | None = None
    """Folder for scaling.json and scaling.png; default: the run's. With --api also of the evaluations, which the same
    command goes on with after a kill."""
    record: str | None = None
    """New folder for the conversations of the largest number of --attempts, for `agentrl view`."""
    json: bool = False
    """Print the contents of scaling.json instead of a table."""
    of_api: Annotated[ApiOptions, tyro.conf.arg(name="")] = dataclasses.field(default_factory=ApiOptions)


_OPTIONS = ("checkpoint", "env", "levels", "panel", "episodes", "temperature", "seed")
_OF_ITEMS = ("items", "url", "token_file")


def run(command: Scaling) -> None:
    """Writes the JSON file and the figure, and prints a table."""
    axes: dict[str, Any] = {
        name: _numbers(name, getattr(command, name)) for name in ("turns", "tokens", "samples", "attempts")
    }
    found = _of_run(command, axes) if command.of_api.api is None else _of_api_model(command, axes)
    from agentrl_jax.evaluate.scaling import plot_scaling
    from agentrl_jax.io import atomic_write

    out = Path(command.out or command.run or "")
    text = json.dumps(found, allow_nan=False)
    with atomic_write(out / "scaling.json") as file:
        file.write(text + "\n")
    plot_scaling(found, out / "scaling.png")
    if command.json:
        print(text)
    else:
        _show(found, out)
    if unfinished := found.get("unfinished"):
        to_stderr(
            f"agentrl: {unfinished} episodes are unfinished; give the same command again, which asks only for what is "
            "missing"
        )
        sys.exit(1)


def _of_api_model(command: Scaling, axes: dict[str, Any]) -> dict[str, Any]:
    refuse(command, ("run", "checkpoint", "record"), "without --api")
    options, call, _ = asked(command, command.of_api)
    from agentrl_jax.evaluate.api_models.scaling import scale_api

    assert command.out is not None
    return scale_api(options, command.out, selector=command.selector, **axes, **call)


def _of_run(command: Scaling, axes: dict[str, Any]) -> dict[str, Any]:
    refuse(command.of_api, [field.name for field in dataclasses.fields(command.of_api)], "with --api")
    refuse(command, _OF_ITEMS, "with --api")
    if command.run is None:
        raise UserError("a run is missing; write `agentrl scaling RUN`, or give --api MODEL", key="RUN")
    if command.env is not None:
        check_env(command.env, "--env")
    check_level_file(command.levels)
    if command.record is not None and not command.attempts:
        raise UserError.of(
            "--record",
            command.record,
            "the folder for the conversations of --attempts, which is missing; give it, or record an evaluation with "
            "agentrl eval",
        )
    if command.out is not None:
        check_out_folder(command.out, Path(command.out))
    elif Path(command.run).is_dir():
        try:
            try_writing(command.run)
        except OSError as error:
            raise UserError.at(
                command.run,
                f"cannot be written ({error.strerror}), expected a folder for scaling.json and its figure; name one "
                "with --out",
            ) from error
    from agentrl_jax.evaluate.scaling import scale

    return scale(
        command.run,
        **axes,
        selector=command.selector,
        record=command.record,
        report=to_stderr,
        **{name: getattr(command, name) for name in _OPTIONS},
    )


def _show(found: dict[str, Any], out: Path) -> None:
    from agentrl_jax.evaluate.axis_tables import axis_tables

    terminal = Terminal()
    for axis, points in found["axes"].items():
        terminal.print(*axis_tables(axis, points))
        if axis == "attempts" and "retry" in found:
            terminal.print(found["retry"]["note"])
    terminal.print(f"figure: {out / 'scaling.png'}")


def _numbers(name: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdecimal() and len(part) < 7 for part in parts):
        raise UserError.of(f"--{name}", text, "expected numbers with commas between them, such as 5,10,20")
    return tuple(map(int, parts))
