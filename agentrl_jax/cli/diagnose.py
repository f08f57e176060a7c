"""`agentrl diagnose`: whether a run has collapsed, when, and on which evidence."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import tyro


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
    from agentrl_jax.evaluate.diagnose import diagnose

    figure = command.figure or str(Path(command.run) / "diagnosis.png")
    found = diagnose(command.run, figure)
    if command.json:
        print(json.dumps(found | {"figure": figure}, allow_nan=False))
    else:
        print("\n".join([*found["lines"], f"figure: {figure}"]))
