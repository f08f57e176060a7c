"""Panels: named sets of test levels, each with a digest of what an agent is shown at the start of every level.

A result on a panel says on which levels it was reached, under which rules, and can be compared with any other result on
it. `data/panels.json` has the panels; `python -m agentrl_jax.evaluate.make_panels` makes that file.
"""

import dataclasses
import difflib
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Int8, Key

from agentrl_jax.config import Config, TaskConfig
from agentrl_jax.config.tasks import PANEL
from agentrl_jax.environments.kinds import kind_of, titles
from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.draws import Draws
from agentrl_jax.rollout import rng
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.items import parse_ranges
from agentrl_jax.setup import build_inputs, run_keys
from agentrl_jax.strict_json import parse_object
from envs_jax import registry
from envs_jax.environment import NO_PIECE
from envs_jax.splits import Split

FILE = Path(__file__).with_name("data") / "panels.json"

SERVICES = {"BabyAI": "babyai"}
"""Services that have the items of a compiled environment."""


@dataclasses.dataclass(frozen=True)
class Panel:
    """Test levels of one environment, and the rules that they are played by."""

    name: str
    env: str
    """Name of a compiled environment or of a service."""
    options: Mapping[str, Any]
    """Options of the compiled environment."""
    max_actions: int
    """Actions of an episode; one a turn in a service."""
    rule: str
    """How the levels were chosen, in words."""
    sha256: str
    """Digest, see `digest`."""
    levels: int = 0
    """Number of generated levels; 0 if there are `items`."""
    seed: int = 0
    """Seed of sampling, and of generated levels, which are of the test split."""
    items: str = ""
    """Numbers of the items, such as 0-24,30."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The items; empty for generated levels."""
        return parse_ranges(self.items) if self.items else ()

    def __len__(self) -> int:
        return len(self.numbers) or self.levels


@functools.cache
def load_panels() -> dict[str, Panel]:
    """The panels by name."""
    entries = parse_object(FILE.read_bytes(), str(FILE))
    return {name: Panel(name=name, **entry) for name, entry in entries.items()}


def get_panel(name: str) -> Panel:
    """The panel of this name; a `UserError` if there is none."""
    panels = load_panels()
    if name not in panels:
        near = difflib.get_close_matches(name, panels, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(panels)}"
        raise UserError.of("--panel", name, f"which is no panel; {hint}")
    return panels[name]


def digest(panel: Panel, shown: Sequence[str]) -> str:
    """SHA-256 of the panel's environment, options, limit of actions and items, and of the first observations `shown`.

    An observation is the environment's text without prompt and tokenizer. Items count too, because in some services all
    begin with the same text.
    """
    named = {"env": panel.env, "options": dict(panel.options), "max_actions": panel.max_actions, "items": panel.items}
    text = json.dumps({**named, "first_observations": list(shown)}, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class OtherLevels(UserError):
    """What is shown is not what a panel has, so that nothing that was played counts for it."""


def check_shown(panel: Panel, shown: Sequence[str]) -> None:
    """Refuses first observations that are not the panel's.

    Raises:
        OtherLevels: the digest differs.
    """
    found = digest(panel, shown)
    if found != panel.sha256:
        raise OtherLevels(
            f"{panel.name}: what would be played has digest {found[:16]}, expected {panel.sha256[:16]}: levels or text "
            f"of {panel.env} are not what they were; use the version of the package that the panel is from, or make a "
            "panel with a new name"
        )


def level_keys(seed: int, numbers: Int[np.ndarray, " n"]) -> Key[Array, " n"]:
    """Keys of draws of test levels of a seed, as in an `EvalSet` of the test split."""
    key = run_keys.of_evaluation(seed, int(Split.TEST))
    return rng.level_key(key, build_inputs.evaluation_ids(numbers, 0))


def environment(panel: Panel) -> tuple[Any, Any]:
    """The compiled environment of a panel and its parameters, without levels."""
    env, params = registry.make(panel.env, **panel.options)
    return env.on_items(params, ()) if panel.env in SERVICES else (env, params)


def panel_levels(panel: Panel) -> Int8[np.ndarray, "n H W"]:
    """The levels of a compiled environment's panel; i8[n, 0, 0] if its levels are no boards."""
    if panel.items:
        from envs_jax.babyai import items

        return items.load(panel.numbers)
    draws = Draws(*environment(panel), functools.partial(level_keys, panel.seed), Split.TEST)
    return draws.first(panel.levels)[1]


def shown_at(panel: Panel, levels: Int8[np.ndarray, "n H W"]) -> list[str]:
    """What the panel's compiled environment shows first on levels, or with the panel's keys if they are no boards."""
    env, params = environment(panel)
    starts: Any = jnp.asarray(levels) if levels.size else level_keys(panel.seed, np.arange(len(levels)))
    reset = env.reset_to_level if levels.size else env.reset_env

    def describe(start: jax.Array) -> jax.Array:
        return env.describe(reset(start, params)[1], params)

    pieces = np.asarray(jax.jit(jax.vmap(describe))(starts))
    return ["".join(env.pieces[piece] for piece in row if piece != NO_PIECE) for row in pieces.tolist()]


def first_observations(panel: Panel) -> list[str]:
    """What is shown first on every level of a panel, by the code in this process.

    Raises:
        ValueError: a package that the service needs is missing.
    """
    return kind_of(panel.env).shown(panel)


def shown_here(panel: Panel) -> list[str]:
    """See `first_observations`, of a compiled environment."""
    return shown_at(panel, panel_levels(panel))


def shown_in_service(panel: Panel) -> list[str]:
    """See `first_observations`, of an environment that is played as a service."""
    instance = get_service(panel.env).make(False)
    try:
        return [instance.reset(item).observation for item in panel.numbers]
    finally:
        instance.close()


def on_panel(config: Config, panel: Panel, run: str) -> Config:
    """The configuration of a run with the panel's task, levels and limit of actions.

    A run keeps its own limit of turns, and its options for an environment with items, which say what is shown of a
    level. `run` is named in errors.

    Raises:
        UserError: the run cannot play the panel.
    """
    evaluation = config.evaluation.replace(episodes=len(panel), seed=panel.seed)
    config, prompt = config.replace(evaluation=evaluation), config.prompt
    own = {task.env: task for task in reversed(config.tasks)}
    if any(kind.has_items for kind in config.kinds):
        task = own.get(SERVICES.get(panel.env, panel.env))
        if task is None:
            raise UserError.of(
                "--panel",
                panel.name,
                f"but {run} was trained on the {titles(config.kinds)} {', '.join(own)}; expected one of their panels",
            )
        turns = min(prompt.max_turns, panel.max_actions)
        served = task.replace(held_out=panel.items, validation="")
        return config.replace(tasks=(served,), prompt=prompt.replace(max_turns=turns))
    if kind_of(panel.env).has_items:
        raise UserError.of(
            "--panel",
            panel.name,
            f"of the service {panel.env}, but {run} was trained on compiled environments; expected a panel of one of "
            "these",
        )
    task = TaskConfig(env=panel.env, groups=1, options=dict(panel.options))
    if panel.items:
        task = own.get(panel.env, task).replace(levels=PANEL)
    return config.replace(tasks=(task,), prompt=prompt.replace(max_actions=panel.max_actions))
