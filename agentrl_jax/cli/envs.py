"""`agentrl envs`: lists the environments, with the success of random and of optimal play."""

import dataclasses
import json
import math

from rich.console import Console
from rich.table import Table

from agentrl_jax.cli.checks import check_at_least_1


@dataclasses.dataclass(frozen=True)
class Envs:
    """List the environments with the success of random play and of optimal play with one action per turn."""

    levels: int = 512
    """Levels per environment on which both are computed. With the defaults of levels and seed, values come from a
    table, which has none for BabyAI. Computing them takes a while, for BabyAI's harder levels minutes each."""
    seed: int = 0
    """Seed of the levels."""
    json: bool = False
    """Print JSON instead of a table."""


def run(command: Envs) -> None:
    """Prints the environments."""
    check_at_least_1(command, "levels")
    import jax

    from envs_jax import known_baselines, registry
    from envs_jax.budget import Budget

    asked = (command.seed, command.levels) == (known_baselines.SEED, known_baselines.LEVELS)
    rows = []
    with Console(stderr=True).status("computing") as status:
        for name in registry.registered():
            spec = registry.spec(name)
            values = known_baselines.BASELINES.get(name, (math.nan, math.nan)) if asked else None
            if values is None:
                status.update(f"computing {name}")
                budget = Budget.one_per_turn(spec.max_actions)
                values = registry.baselines(name, jax.random.key(command.seed), command.levels, budget)
            random, optimal = (None if math.isnan(value) else value for value in values)
            rows.append((name, random, optimal, spec.max_actions, spec.description))
    if command.json:
        keys = ("env", "random", "optimal", "max_actions", "description")
        print(json.dumps([dict(zip(keys, row)) for row in rows]))
        return
    caption = f"Success within the action budget, one action a turn, exact on {command.levels} levels"
    table = Table(caption=f"{caption} of seed {command.seed}")
    for title in ("environment", "random", "optimal", "actions", "description"):
        number = title in ("random", "optimal", "actions")
        table.add_column(title, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for name, *rates, actions, description in rows:
        shown = ("unknown" if rate is None else f"{rate:.1%}" for rate in rates)
        table.add_row(name, *shown, str(actions), description)
    Console().print(table)
