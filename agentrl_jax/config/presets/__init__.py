"""Learning rules by the names that users of the papers expect: a YAML file each, with the source of every value.

A file holds keys of `algo`, and behind each value a comment that says where it is from; its first line is a comment
that says what it is. Values are those that the published code computes with, where it differs from its own files: the
KL coefficient in RAGEN's script of plain StarPO has no effect there, and a token mean over micro-batches of one row is
a mean over rows.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from agentrl_jax import safe_yaml
from agentrl_jax.errors import BadValue

_FOLDER = Path(__file__).parent

NAMES = tuple(sorted(file.stem for file in _FOLDER.glob("*.yaml")))


@dataclasses.dataclass(frozen=True)
class Preset:
    """A preset, described in one line; keys of `algo` that are not among the values have their defaults."""

    about: str
    values: Mapping[str, Any]
    sources: Mapping[str, str]
    """Where each of the values comes from, by its dotted key."""


def check_name(name: str) -> str:
    """Returns the name; raises BadValue if there is no preset of that name."""
    if name not in NAMES:
        raise BadValue.of("algo.preset", name, f"expected {', '.join(NAMES[:-1])} or {NAMES[-1]}")
    return name


@functools.cache
def read_preset(name: str) -> Preset:
    """Returns the preset of a name; raises as `check_name`."""
    text = (_FOLDER / f"{check_name(name)}.yaml").read_text(encoding="utf-8")
    lines = text.splitlines()
    sources = {}
    for key, node in _leaves(yaml.compose(text, safe_yaml.Loader)):
        behind = lines[node.end_mark.line][node.end_mark.column :]
        sources[key] = behind.partition("# ")[2].strip()
    return Preset(lines[0].removeprefix("# "), safe_yaml.parse(text), sources)


def _leaves(node: yaml.Node, prefix: str = "") -> Iterator[tuple[str, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _leaves(value, f"{prefix}.{key.value}" if prefix else key.value)
    else:
        yield prefix, node
