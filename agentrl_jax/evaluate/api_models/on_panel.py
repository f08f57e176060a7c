"""Panels for API models: what is played, and the record of the result."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.errors import UserError, refusals
from agentrl_jax.evaluate import panels
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.evaluate.panels import Panel
from agentrl_jax.rollout.envs.host_episodes import text_hash
from agentrl_jax.rollout.trajectory import hexadecimal


def on_panel(options: TaskOptions, panel: Panel) -> TaskOptions:
    """The options with the panel's environment, levels and limit of actions.

    In a service an action is a turn; elsewhere the model keeps its own limits of turns and of actions per turn. The
    seed of requests stays the one that was given.

    Raises:
        UserError: an option would play something else, or the levels are not the panel's.
    """
    service = panels.SERVICES.get(panel.env, panel.env)
    served = bool(panel.items)
    fixed: dict[str, Any] = {"env": service if served else panel.env}
    if served:
        fixed |= {"items": panel.items, "turns": panel.max_actions, "style": "chat"}
        fixed |= {"upstream": panel.options.get("mode") == "upstream"}
    else:
        env_options = tuple(sorted(panel.options.items()))
        fixed |= {"episodes": panel.levels, "level_seed": panel.seed, "env_options": env_options}
        fixed |= {"max_actions": panel.max_actions}
    for name in ("env", "items", "episodes", "levels", *(("turns",) if served else ())):
        if given := getattr(options, name):
            raise UserError.of(f"--{name}", given, f"which --panel {panel.name} fixes; leave it out")
    if served and options.style not in ("auto", "chat"):
        raise UserError.of("--style", options.style, f"but {panel.name} is played as a service; leave it out")
    with refusals():
        panels.check_shown(panel, panels.first_observations(panel))
    return dataclasses.replace(options, **fixed)


def record_parts(result: Mapping[str, Any], options: TaskOptions, panel: Panel) -> dict[str, Any]:
    """What `records.of_result` reads of a result of `evaluate_api` without unfinished episodes.

    An episode that was cut, was refused or has failed has no outcome; the record has their numbers.

    Raises:
        UserError: a server has shown other items than the panel's.
    """
    if options.url != "local":
        _check_levels(result["levels"], options.url, panel)
    episodes, asked = result["episodes"], len(result["outcomes"]["samples"]) * result["samples"]
    assert not episodes["unfinished"], "what is unfinished can still get any outcome"
    served = result["style"] == "chat"
    decoding = {
        "samples": result["samples"],
        "seed": (options.level_seed or 0) if options.seed is None else options.seed,
        "turns": result["turns"],
        "actions": panel.max_actions,
        "actions_per_turn": 1 if served else options.actions_per_turn,
        "temperature": result["temperature"],
        "response_tokens": result["max_tokens"],
        "think": options.think,
        "options": dict(panel.options),
    }
    outcomes = dict(result["outcomes"])
    unanswered = {name: episodes[name] for name in ("length", "refusal", "failed")}
    outcomes |= {"unanswered": unanswered} if any(unanswered.values()) else {}
    tokens = result["tokens"]
    counted = not tokens["replies_without_usage"]
    return {
        **{name: result[name] for name in ("random", "null", "optimal") if name in result},
        "success": result["success_all"],
        "success_answered": result["success_answered"],
        "gap_closed": result.get("gap_closed_all"),
        "outcomes": outcomes,
        "optimal_is": result.get("optimal_is"),
        "baseline_turns": result.get("baseline_turns", {}),
        "mean_turns": result["turns_used"],
        "mean_tokens": tokens["completion_tokens"] / asked if counted else None,
        "panel": {"name": panel.name, "sha256": panel.sha256},
        "agent": {"kind": "api", "name": result["model"]},
        "decoding": decoding,
    }


def _check_levels(levels: Sequence[str | None], url: str, panel: Panel) -> None:
    """Compares the first observations of a server, by their hashes, with those of the panel."""
    known = hexadecimal(np.stack([text_hash(text) for text in panels.first_observations(panel)]))
    for item, found, expected in zip(panel.numbers, levels, known, strict=True):
        if found not in (expected, None):  # None: the server of the model refused its first request
            raise UserError.of(
                "--panel",
                panel.name,
                f"but item {item} begins with another text on the server at {url}: the replies are kept, and there is "
                "no record; play the server's items with --env and --items instead",
            )
