"""Checks of the schedules with the rest of a configuration."""

from collections.abc import Iterator
from typing import Any

from agentrl_jax.config.fields import out_of_bounds
from agentrl_jax.config.schema import Config


def check_schedules(config: Config) -> Iterator[tuple[str, Any, str]]:
    """Yields the schedules that change nothing, or end where their value may not be, as key, value and what to do."""
    algo, starts = config.algo, config.schedule_starts()
    for name, schedule in algo.schedules.items():
        key, end = f"algo.schedules.{name}.end", schedule.end
        if name not in starts:
            meant = [start for start in starts if name in (start.split(".")[-1], start.replace(".", "_"))]
            why = f"but this run has no {name}; use {' or '.join(meant or starts)}, or leave it out"
            if kind := getattr(getattr(algo, name.partition(".")[0], None), "kind", ""):
                why = f"but algo.{name.partition('.')[0]} {kind} does not read it; leave it out"
            yield key, end, why
        elif end == starts[name]:
            yield key, end, f"where {name} starts from, so that nothing changes; give another end, or leave it out"
        if why := _bound_of(config, name, end):
            yield key, end, why


def _bound_of(config: Config, name: str, end: float) -> str:
    """Why a schedule of a key of `schedule_starts` may not end with a value; empty if it may."""
    if name == "rollout.temperature" and end == 0:
        return "expected more than 0"
    section, _, field = name.rpartition(".")
    parts: dict[str, Any] = {f"rewards.{name}": part for name, part in config.algo.rewards.items()}
    parts |= {f"advantage.{index}": rule for index, rule in enumerate(config.algo.advantage.rules)}
    part: Any = (
        parts.get(section, getattr(config.algo, section, getattr(config, section, None))) if section else config.algo
    )
    found = type(part).model_fields.get(field)  # parameters of functions have none
    return out_of_bounds(found, end) if found else ""
