"""`agentrl play`: play an environment by hand."""

import dataclasses
from typing import Annotated, Literal

import tyro

from agentrl_jax.cli.checks import check_env, check_level_file
from agentrl_jax.config.tasks import NAMED_LEVELS
from agentrl_jax.environments.kinds import kind_of
from agentrl_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Play:
    """Play an environment yourself, reading the exact text that the agent reads."""

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """Tag of the environment; `agentrl envs` lists them. Or the import path of a Python environment."""
    style: Literal["compact", "ragen"] = "compact"
    """Prompt style; the default is that of a run (prompt.style)."""
    think: bool = False
    """Ask for a think block, as for the agent."""
    seed: int = 0
    """Seed of the level and of the environment's randomness."""
    levels: str | None = None
    """File with levels as text; the first one is played. For BabyAI also panel, the published test items, or
    other-levels, the stored items of the other levels."""


def run(command: Play) -> None:
    """Plays one episode."""
    check_env(command.env, "env")
    if command.levels is not None and "levels" not in kind_of(command.env).takes:
        raise UserError.of("--levels", command.levels, f"which {command.env} does not have; give a --seed")
    check_level_file(command.levels)
    if command.levels in NAMED_LEVELS and command.env.startswith("BabyAI-"):
        raise UserError.of(
            "--levels",
            command.levels,
            f"which are items of many levels, but {command.env} is a single one; play BabyAI, or leave --levels out",
        )
    from agentrl_jax.evaluate.play import play

    options = dataclasses.asdict(command)
    play(options.pop("env"), **options)
