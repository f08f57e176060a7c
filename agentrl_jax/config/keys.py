"""The keys of a configuration: their types, a list of all of them, and the key that a wrong one may have meant."""

import difflib
import functools
import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from agentrl_jax.config.fields import Section
from agentrl_jax.config.presets import NAMES
from agentrl_jax.config.schema import Config
from agentrl_jax.errors import BadValue, shortened


def sections_of(kind: Any) -> list[type[Section]]:
    """The section classes of a type: itself, or the members of a union."""
    return [part for part in get_args(kind) or (kind,) if isinstance(part, type) and issubclass(part, Section)]


def child_type(kind: Any, key: str) -> Any:
    """The type of the value at a key of a section, list or mapping; None if there is no such key."""
    if get_origin(kind) in (tuple, dict):
        return get_args(kind)[0 if get_origin(kind) is tuple else 1]
    found = [part.model_fields[key].annotation for part in sections_of(kind) if key in part.model_fields]
    if len(found) > 1 and all(get_origin(each) is Literal for each in found):
        return Literal[tuple(name for each in found for name in get_args(each))]
    return found[0] if found else None


def every_key(kind: Any = Config, prefix: str = "") -> Iterator[str]:
    """Dotted keys of all sections and values, for all kinds, but not inside lists and mappings."""
    for name in dict.fromkeys(name for part in sections_of(kind) for name in part.model_fields):
        yield prefix + name
        below = child_type(kind, name)
        if get_origin(below) not in (tuple, dict):
            yield from every_key(below, f"{prefix}{name}.")


def unknown_key(path: Sequence[Any], value: Any = None, kind: Any = None) -> BadValue:
    """The refusal of an unknown key, with the key that may have been meant: a sibling, or one elsewhere.

    `value` is the value at the key, and `kind` the kind of its section, if sections there have kinds.
    """
    *above, key = map(str, path)
    prefix, parts = ".".join(above), sections_of(functools.reduce(child_type, above, Config))
    if kind and len(parts) > 1:
        kinds = {part.model_fields["kind"].default: part for part in parts}
        others = [name for name, part in kinds.items() if key in part.model_fields]
        if others:
            why = f"which {prefix}.kind {kind} does not have; leave it out, or use kind {' or '.join(others)}"
            return BadValue.of(f"{prefix}.{key}", value, why)
        parts = [kinds[kind]]
    siblings = list(dict.fromkeys(name for part in parts for name in part.model_fields))
    by_name = {each.rpartition(".")[2]: each for each in every_key()}
    meant = [each for each in every_key() if key in (each.rpartition(".")[2], "_".join(each.split(".")[-2:]))]
    meant = meant or [".".join((*above, name)) for name in difflib.get_close_matches(key, siblings, n=1)]
    if siblings and not meant:
        meant = [by_name[name] for name in difflib.get_close_matches(key, by_name, n=1)]
    hint = f"known keys here: {', '.join(siblings)}" if siblings else "there are no keys below this one"
    if meant:
        hint = f"did you mean {' or '.join(meant)}?"
    name = shortened(".".join(map(str, path)))
    return BadValue(f"unknown key {name}; {hint}", key=name)


def listing(config: Config) -> str:
    """Every key with its value and help text; of a section with kinds, those of the other kinds follow."""
    return "\n".join(_lines(config, ""))


def _lines(section: Section, prefix: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        if name == "kind":
            continue
        value, key = getattr(section, name), prefix + name
        text = " ".join((field.description or type(value).__doc__ or "").split())
        if isinstance(value, Section):
            yield f"\n{key}: {text}"
            kinds = sections_of(field.annotation)
            if len(kinds) > 1:
                meanings = (f"{each.model_fields['kind'].default}: {(each.__doc__ or '').strip()}" for each in kinds)
                yield from _entry(f"{key}.kind", value.kind, " ".join(meanings))  # type: ignore[attr-defined]
            yield from _lines(value, f"{key}.")
            for other in (each for each in kinds if not isinstance(value, each)):
                own = ", ".join(f"{n} {_shown(f.default)}" for n, f in other.model_fields.items() if n != "kind")
                if own:
                    yield from _wrapped(f"(kind {other.model_fields['kind'].default} has {own})", 2)
        elif isinstance(value, tuple) and value and isinstance(value[0], Section):
            yield f"\n{key}: {text}"
            for index, each in enumerate(value):
                yield from _lines(each, f"{key}.{index}.")
        else:
            choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
            choices = NAMES if key == "algo.preset" else choices
            yield from _entry(key, value, f"{text} ({', '.join(choices)})" if choices else text)


def _entry(key: str, value: Any, text: str) -> Iterator[str]:
    yield f"  --{key} {_shown(value)}"
    yield from _wrapped(text, 6)


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=" " * indent, subsequent_indent=" " * indent)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value or "''"
    return "none" if value is None else json.dumps(value, default=Section.model_dump)
