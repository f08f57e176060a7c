"""`agentrl bench`: estimators of the policy gradient against the exact one."""

import dataclasses
import sys
from typing import Annotated, Literal

import tyro


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure estimators of the policy gradient against the exact one, on a task whose trajectories can be counted."""

    what: Annotated[tyro.conf.Positional[Literal["estimators"]], tyro.conf.arg(metavar="estimators")]
    """What is measured."""
    group_size: tuple[int, ...] = (2, 3)
    """Sizes of the groups; all groups of 2 or 3 are summed over, which takes some seconds a case."""
    policy: Literal["table", "one_layer"] = "table"
    """A free logit for everything the policy can see, or a hidden layer that shares parameters."""
    drift: Literal["none", "small", "large"] = "none"
    """How far the policy that draws the groups is from the trained one; other than none, clips and importance weights
    are what is measured."""
    direction: int = 0
    """Seed of the direction in which the policy that draws has moved."""
    draws: int = 0
    """Groups that are sampled instead, for larger groups; 0: all groups are summed over."""
    only: str = ""
    """Only estimators whose names hold this text."""
    seed: int = 0
    """Seed of the sampling."""
    figure: str | None = None
    """Path of a figure (.png) to write."""
    format: Literal["table", "markdown", "json"] = "table"
    """What is printed."""


def run(command: Bench) -> None:
    """Prints what estimators of the policy gradient are worth."""
    from agentrl_jax.errors import refusals
    from agentrl_jax.studies.estimator_bias.report import run

    options = dataclasses.asdict(command)
    del options["what"]  # there is one thing to measure
    with refusals():
        run(**options, report=lambda line: print(line, file=sys.stderr))
