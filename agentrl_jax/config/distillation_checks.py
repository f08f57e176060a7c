"""Checks of plans in prompts, which `algo.distillation` and `imitation.hinted` need, against other sections."""

from collections.abc import Iterator
from typing import Any

from agentrl_jax.config.distillation import SelfDistillation
from agentrl_jax.config.schema import Config

_READ_BY = {"ratio_cap": ("loss", "sampled"), "ema_rate": ("teacher", "ema"), "gate_slope": ("gate", "sdar")}
"""Numbers that one choice alone reads: its key and its value."""


def distillation(config: Config) -> Iterator[tuple[str, Any, str]]:
    """Yields the key and the value of what is refused, and why."""
    found, hinted = config.algo.distillation, config.imitation.hinted
    if isinstance(found, SelfDistillation):
        yield from _teacher(config, found)
    readers = {"imitation.hinted": hinted, "algo.distillation.context": getattr(found, "context", "none")}
    for key, value in readers.items():
        if value in (0.0, "none"):
            continue
        if config.served:
            yield key, value, "but only compiled environments have planners for prompts; leave it out"
        if config.agent.kind != "full":
            why = f"but with agent {config.agent.kind} no turn shows which actions of the plan were taken; use full"
            yield key, value, why
        if config.prompt.encoder != "pieces":
            yield key, value, "whose text prompt.encoder canonical cannot take into a prompt; use pieces"
    if hinted and not config.imitation.levels:
        yield "imitation.hinted", hinted, "but imitation.levels is 0; set it to 0 too"


def _teacher(config: Config, found: SelfDistillation) -> Iterator[tuple[str, Any, str]]:
    key = "algo.distillation"
    for name, (choice, wanted) in _READ_BY.items():
        value, chosen = getattr(found, name), getattr(found, choice)
        if chosen != wanted and value != type(found).model_fields[name].default:
            yield f"{key}.{name}", value, f"which {key}.{choice} {chosen} does not read; leave it out"
    if found.accept_weak_teacher and not found.has_plans:
        yield f"{key}.accept_weak_teacher", True, f"which {key}.context none does not read; leave it out"
    if config.algo.packing:
        yield "algo.packing", True, f"but the rows of {key} have other lengths for the teacher; use false"
    for index, task in enumerate(config.tasks if found.context == "wrong_plan" else ()):
        if task.groups == 1:
            why = f"but {key}.context wrong_plan takes the plan of another level of the batch; use at least 2"
            yield f"tasks.{index}.groups", 1, why
