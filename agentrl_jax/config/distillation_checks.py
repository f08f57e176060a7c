"""Checks of a teacher, and of plans in prompts, against other sections; see `checks`."""

from collections.abc import Iterator
from typing import Any

from agentrl_jax.config.distillation import SelfDistillation
from agentrl_jax.config.schema import Config

Refused = tuple[str, Any, str]

_KEY = "algo.distillation"
_READ_BY = {"ratio_cap": ("loss", "sampled"), "ema_rate": ("teacher", "ema"), "gate_slope": ("gate", "sdar")}
"""Numbers that one choice alone reads: its key and its value."""


def check_teacher(config: Config) -> Iterator[Refused]:
    """Yields the key and the value of what is refused of a teacher, and why."""
    found = config.algo.distillation
    if not isinstance(found, SelfDistillation):
        return
    for name, (choice, wanted) in _READ_BY.items():
        value, chosen = getattr(found, name), getattr(found, choice)
        if chosen != wanted and value != type(found).model_fields[name].default:
            yield f"{_KEY}.{name}", value, f"which {_KEY}.{choice} {chosen} does not read; leave it out"
    if found.accept_weak_teacher and not found.has_plans:
        yield f"{_KEY}.accept_weak_teacher", True, f"which {_KEY}.context none does not read; leave it out"
    if config.algo.packing:
        yield "algo.packing", True, f"but with {_KEY} rows have other lengths for the teacher; use false"
    for index, task in enumerate(config.tasks if found.context == "wrong_plan" else ()):
        if task.groups == 1:
            why = f"but {_KEY}.context wrong_plan takes the plan of another level of the batch; use at least 2"
            yield f"tasks.{index}.groups", 1, why


def check_hints(config: Config) -> Iterator[Refused]:
    """Yields the key and the value of what cannot be shown in prompts, and why."""
    rule, share = config.algo.distillation, config.imitation.hinted
    shown: dict[str, Any] = {"imitation.hinted": share} if share else {}
    if isinstance(rule, SelfDistillation) and rule.has_plans:
        shown[f"{_KEY}.context"] = rule.context
    for key, value in shown.items():
        if config.on_host:
            yield key, value, "but only compiled environments have planners for prompts; leave it out"
        if config.agent.kind != "full":
            why = f"but with agent {config.agent.kind} no turn shows which actions of the plan were taken; use full"
            yield key, value, why
        if config.prompt.encoder != "pieces":
            yield key, value, f"which prompt.encoder {config.prompt.encoder} cannot take into a prompt; use pieces"
    if share and not config.imitation.levels:
        yield "imitation.hinted", share, "but imitation.levels is 0; set both above 0, or both to 0"
