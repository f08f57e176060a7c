"""`agentrl play`: play an environment by hand."""

import dataclasses
from typing import Annotated, Literal

import tyro

from agentrl_jax.cli.checks import known, readable


@dataclasses.dataclass(frozen=True)
class Play:
    """Play an environment yourself, reading the exact text that the agent reads."""

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """Tag of the environment; `agentrl envs` lists them."""
    style: Literal["compact", "ragen"] = "ragen"
    """Prompt style."""
    think: bool = False
    """Ask for a think block, as for the agent."""
    seed: int = 0
    """Seed of the level and of the environment's randomness."""
    levels: str | None = None
    """File with levels as text; the first one is played."""


def run(command: Play) -> None:
    """Plays one episode."""
    known(command.env, "env")
    readable(command.levels)
    from agentrl_jax.evaluate.play import play

    play(command.env, style=command.style, think=command.think, seed=command.seed, levels=command.levels)
