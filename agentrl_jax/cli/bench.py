"""`agentrl bench`: estimators of the policy gradient against the exact one."""

import dataclasses
from typing import Annotated, Literal

import tyro

from agentrl_jax.terminal import to_stderr


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure estimators of the policy gradient against the exact one, on a task with enumerable trajectories."""

    what: Annotated[tyro.conf.Positional[Literal["estimators"]], tyro.conf.arg(metavar="estimators")]
    """What is measured."""
    group_size: tuple[int, ...] = (2, 3)
    """Sizes of the groups; all groups of 2 or 3 are summed over, which takes some seconds per case."""
    policy: Literal["table", "one_layer"] = "table"
    """A table with one logit per context and token, or a hidden layer that shares parameters."""
    drift: Literal["none", "small", "large"] = "none"
    """Distance of the behavior policy, which samples the groups, from the trained policy; with small or large, clips
    and importance weights are measured."""
    direction: int = 0
    """Seed of the direction in which the behavior policy has drifted."""
    draws: int = 0
    """Groups to sample, for larger groups; 0: sum over all groups."""
    only: str = ""
    """Only estimators whose names contain this text."""
    seed: int = 0
    """Seed of the sampling; only with draws."""
    figure: str | None = None
    """Path of a figure (.png) to write."""
    format: Literal["table", "markdown", "json"] = "table"
    """What is printed."""


def run(command: Bench) -> None:
    """Prints how good estimators of the policy gradient are."""
    from agentrl_jax.errors import refusals
    from agentrl_jax.studies.estimator_bias.report import run

    options = dataclasses.asdict(command)
    del options["what"]  # the only choice so far
    options["num_groups"] = options.pop("draws")
    with refusals():
        run(**options, report=to_stderr)
