"""Every key of a configuration with its value and its help text, as `agentrl train FILE --help` prints it."""

import ast
import functools
import inspect
import itertools
import json
import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from agentrl_jax.config.fields import Section
from agentrl_jax.config.load import sections_of
from agentrl_jax.config.presets import NAMES
from agentrl_jax.config.schema import Config

_WIDTH = 100


def listing(config: Config) -> str:
    """All keys; for a section with kinds, those of its current kind, then those of its other kinds."""
    return "\n".join(_lines(config, ""))


@functools.cache
def explanations(section: type[Section]) -> dict[str, str]:
    """Help text of each field of a section, by name; a subclass overrides its base class."""
    found: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if not issubclass(kind, Section) or kind is Section:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[field.target.id] = " ".join(ast.literal_eval(text.value).split())  # type: ignore[union-attr]
    return {name: found[name] for name in section.model_fields if name in found}


def _lines(section: Section, prefix: str) -> Iterator[str]:
    fields = type(section).model_fields
    for name in sorted(fields, key=lambda name: name != "kind"):
        value, kind = getattr(section, name), fields[name].annotation
        if name == "kind":
            continue
        key = f"{prefix}{name}"
        told = explanations(type(section)).get(name, "")
        if isinstance(value, Section):
            yield f"\n{key}: {told}"
            kinds = sections_of(kind)
            if len(kinds) > 1:
                yield from _entry(f"{key}.kind", value.kind, _meanings(kinds))  # type: ignore[attr-defined]
            yield from _lines(value, f"{key}.")
            for other in kinds if len(kinds) > 1 else []:
                others = {n: f.default for n, f in other.model_fields.items() if n != "kind"}
                if others and not isinstance(value, other):
                    shown = ", ".join(f"{n} {_shown(x)}" for n, x in others.items())
                    yield from _wrapped(f"(kind {other.model_fields['kind'].default} has {shown})", 2)
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            yield f"\n{key}: {told}"
            for index, each in enumerate(value):
                yield from _lines(each, f"{key}.{index}.")
        else:
            choices = NAMES if key == "algo.preset" else get_args(kind) if get_origin(kind) is Literal else ()
            told = f"{told} ({', '.join(map(str, choices))})" if choices else told
            yield from _entry(key, value, told)


def _meanings(kinds: list[type[Section]]) -> str:
    told = (f"{kind.model_fields['kind'].default}: {(kind.__doc__ or '').strip()}" for kind in kinds)
    return " ".join(" ".join(text.split()) for text in told)


def _entry(key: str, value: Any, told: str) -> Iterator[str]:
    yield f"  --{key} {_shown(value)}"
    yield from _wrapped(told, 6)


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value or "''"
    if isinstance(value, dict):
        value = {name: part.model_dump() if isinstance(part, Section) else part for name, part in value.items()}
    return "none" if value is None else json.dumps(value)
