"""The settings in which the rows of a list differ: their order, short titles, and groups that differ in the seed."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl_jax.config.load import leaves
from agentrl_jax.errors import shortened, shown

Settings = Mapping[str, Any]
"""Values by dotted key."""

SEED = "seed"
_ABSENT = ""
_NOT_SETTINGS = re.compile(r"run_dir|hosts\..*")


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration, without folder and hosts; lists are values, except those of sections."""
    found: dict[str, Any] = {}
    for key, value in leaves(dict(config), lists=False):
        sections = value and isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
        found |= dict(leaves(value, key, lists=True)) if sections else {key: value}
    return {key: value for key, value in found.items() if not _NOT_SETTINGS.fullmatch(key)}


def differing(settings: Sequence[Settings]) -> tuple[list[str], list[str]]:
    """Keys whose values differ: those that tell the rows apart, then those that follow from them.

    Each of the first divides the rows further than those before it, the one that divides them most first; a seed is the
    last of them. Of equals, those that a preset may have set come last, and those of upper sections first.
    """
    keys = list(dict.fromkeys(key for row in settings for key in row))
    values = {key: [_text(row, key) for row in settings] for key in keys}
    rest = [key for key in keys if len(set(values[key])) > 1]
    rest.sort(key=lambda key: (key.startswith("algo.") and key != "algo.preset", key.count(".")))
    apart: list[str] = []
    group: Sequence[Any] = [0] * len(settings)

    def parts(key: str) -> int:
        return len(set(zip(group, values[key])))

    for allowed in ([key for key in rest if key != SEED], [key for key in rest if key == SEED]):
        while allowed and parts(best := max(allowed, key=parts)) > len(set(group)):
            apart.append(best)
            numbers: dict[Any, int] = {}
            group = [numbers.setdefault(pair, len(numbers)) for pair in zip(group, values[best])]
    return apart, [key for key in rest if key not in apart]


def groups(settings: Sequence[Settings]) -> list[list[int]]:
    """Indices of rows that differ in nothing but their seed."""
    found: dict[str, list[int]] = {}
    for index, row in enumerate(settings):
        found.setdefault(json.dumps({**row, SEED: None}, sort_keys=True), []).append(index)
    return list(found.values())


def titles(keys: Iterable[str]) -> dict[str, str]:
    """The shortest ends of dotted keys that no other key has; `advantage.kind` is called advantage."""
    names = {key: key.removesuffix(".kind").split(".") for key in keys}
    found = {}
    for key, parts in names.items():
        others = [other for name, other in names.items() if name != key]
        short = (
            n for n in range(1, len(parts)) if not parts[-n].isdigit() and all(o[-n:] != parts[-n:] for o in others)
        )
        found[key] = ".".join(parts[-next(short, len(parts)) :])
    return found


def value_of(settings: Settings, key: str) -> str:
    """A value as text; empty if there is none."""
    value = settings.get(key, _ABSENT)
    return shortened(value) if isinstance(value, str) else shown(value)


def _text(settings: Settings, key: str) -> str:
    return json.dumps(settings[key], sort_keys=True) if key in settings else _ABSENT
