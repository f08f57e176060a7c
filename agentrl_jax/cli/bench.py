"""`agentrl bench`: estimators of the policy gradient, and teachers of self-distillation, against exact gradients."""

import dataclasses
from typing import Annotated, Literal

import tyro

from agentrl_jax.terminal import to_stderr


@dataclasses.dataclass(frozen=True)
class Bench:
    """Measure estimators of the policy gradient against the exact one, on a task with enumerable trajectories."""

    what: Annotated[tyro.conf.Positional[Literal["estimators", "teachers"]], tyro.conf.arg(metavar="WHAT")]
    """estimators; or teachers: what self-distillation optimizes, with several of them. Of the options below, teachers
    read policy and format alone."""
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
    own: str = ""
    """An advantage estimator, objective or filter of yours, module:function, or '{kind: module:function, NUMBER: 2.0}';
    it is measured first. Objectives need --drift; a filter keeps some of two groups, with rloo, by their returns. A
    function may compute in float32, so that a bias below 1e-5 counts as none."""
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
    from agentrl_jax.errors import UserError, refusals
    from agentrl_jax.studies.estimator_bias import teachers
    from agentrl_jax.studies.estimator_bias.report import run

    options = dataclasses.asdict(command)
    if options.pop("what") == "teachers":
        for field in dataclasses.fields(command):
            if field.name not in ("what", "policy", "format") and options[field.name] != field.default:
                raise UserError.of(f"--{field.name}", options[field.name], "which teachers do not read; leave it out")
        teachers.run(policy=command.policy, format=command.format)
        return
    options["num_groups"] = options.pop("draws")
    with refusals():
        run(**options, report=to_stderr)
