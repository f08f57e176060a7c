"""`agentrl diagnose`: whether a run has collapsed, when, and on which evidence."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import tyro

from agentrl_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Diagnose:
    """Say whether a run has collapsed, when, and on which evidence; the run may still go on."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder of the run, e.g. runs/demo."""
    figure: str | None = None
    """Path of a figure (.png) of the indicators to write; default: diagnosis.png in the folder of the run."""
    json: bool = False
    """Print one JSON object with verdict, text and alarms instead of sentences."""


def run(command: Diagnose) -> None:
    """Prints whether a run has collapsed."""
    from agentrl_jax.evaluate.diagnose import diagnose, plot_indicators

    found = diagnose(command.run)
    figure = command.figure or str(Path(command.run) / "diagnosis.png")
    failed = None
    try:
        plot_indicators(command.run, figure)
    except UserError as error:  # the diagnosis of a run that cannot be written to is shown all the same
        failed = error
    if command.json:
        print(json.dumps(found | {"figure": None if failed else figure}, allow_nan=False))
    else:
        print("\n".join([*found["lines"], *([] if failed else [f"figure: {figure}"])]))
    if failed:
        raise failed
