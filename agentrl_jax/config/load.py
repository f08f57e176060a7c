"""Reads a configuration: YAML with command-line overrides over the values of a preset, then checks.

The YAML is read with safe types only and decoded strictly: an unknown key, a wrong type or a value out of range is a
`UserError` that names the key.
"""

import difflib
import json
import os
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import ValidationError

from agentrl_jax import safe_yaml
from agentrl_jax.config import presets
from agentrl_jax.config.algo import AlgoConfig
from agentrl_jax.config.checks import validate
from agentrl_jax.config.fields import Section
from agentrl_jax.config.rates import with_rates
from agentrl_jax.config.schema import Config
from agentrl_jax.errors import UserError, shortened, text_flaw
from agentrl_jax.io import atomic_write

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "keys with values",
    "model_type": "keys with values",
    "too_short": "at least one entry",
    "string_too_short": "text that is not empty",
    "literal_error": "{expected}",
    "greater_than": "a number above {gt:.10g}",
    "greater_than_equal": "a number of at least {ge:.10g}",
    "less_than": "a number below {lt:.10g}",
    "less_than_equal": "a number of at most {le:.10g}",
}


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """Reads a YAML file, applies overrides and checks the result.

    Args:
        path: the YAML file.
        overrides: command line words, `--algo.objective.clip_high 0.28` or `--algo.objective.clip_high=0.28`; entries
            of lists by their index (`--tasks.0.groups 4`), values as in YAML.

    Raises:
        UserError: the file cannot be read, or a key or a value is not what was expected.
    """
    data = read_yaml(path)
    for key, text in _override_pairs(overrides):
        _put(data, key, text)
    config = decode(data, source=f"{path} with the command line" if overrides else f"{path}")
    if not config.run_dir:
        config = config.replace(run_dir=os.path.join("runs", Path(path).stem))
    validate(config)
    return config


def load_resolved(path: str | os.PathLike[str]) -> Config:
    """Reads and checks what `save_resolved` wrote. Files named in it may be missing, since not every reader needs them.

    Raises:
        UserError: as `load_config`, or the file is incomplete or from another version.
    """
    data = read_yaml(path)
    missing = [name for name in Config.model_fields if name not in data]
    if missing:
        raise UserError(
            f"{path}: lacks {missing[0]}, but the file of a run holds every key; put back the whole file or use a new "
            "run folder"
        )
    try:
        config = decode(data, source=f"{path}")
        validate(config, files=False)
    except UserError as error:
        text = str(error).removeprefix(f"{path}: ")
        if "unknown key" in text:
            text += (
                f"; if {Path(path).parent} was written by another version of agentrl, use that version, or a new run "
                "folder"
            )
        raise UserError(f"{path}: {text}") from error
    return config


def decode(data: Mapping[str, Any], *, source: str = "configuration") -> Config:
    """Turns plain data into a `Config`; values missing in `algo` come from the preset.

    Learning rates that are not given are filled in, see `rates`.

    Args:
        data: nested mappings and lists, as read from YAML.
        source: name of the data, at the start of an error message.

    Raises:
        UserError: an unknown key, a missing one, a wrong type or a value out of range.
    """
    data = dict(data)
    algo = data.get("algo") or {}
    if isinstance(algo, Mapping):
        name = algo.get("preset", AlgoConfig().preset)
        preset = presets.read_preset(name).values if name in presets.NAMES else {}
        data["algo"] = merged(merged(_KINDS, preset), algo)
    try:
        return with_rates(Config.model_validate_json(json.dumps(data, default=str)))
    except ValidationError as error:
        raise UserError(f"{source}: {_explain(error)}") from error
    except (ValueError, RecursionError) as error:  # from json.dumps
        raise UserError(f"{source}: holds a part of itself; write its values out") from error


_KINDS = {
    name: field.default.model_dump(include={"kind"})
    for name, field in AlgoConfig.model_fields.items()
    if isinstance(field.default, Section)
}
"""Fields of `algo` that have a kind, and their default kinds."""


def merged(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides keys of `algo`. A field with a kind is merged key by key if the kind is the same, else replaced."""
    result = {key: _written_out(value) if key in _KINDS else value for key, value in base.items()}
    for key, value in given.items():
        if key in _KINDS:
            value, below = _written_out(value), result.get(key)
            if isinstance(value, dict) and isinstance(below, dict):
                kinds = [part["kind"] for part in (value, below) if "kind" in part]
                value = value if kinds[1:] and kinds[0] != kinds[1] else {**below, **value}
        result[key] = value
    return result


def _written_out(value: Any) -> Any:
    """Expands a field with a kind that was given by its kind alone; null means the kind none."""
    return {"kind": value or "none"} if value is None or isinstance(value, str) else value


def to_dict(config: Config) -> dict[str, Any]:
    """The tree as plain mappings, lists, numbers, text and booleans, ready for YAML or JSON."""
    return config.model_dump(mode="json")


def save_resolved(config: Config, path: str | os.PathLike[str]) -> None:
    """Writes every value of the tree to a YAML file, which `load_config` reads back as the same tree."""
    text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True, width=120)
    with atomic_write(path) as file:
        file.write(text)


def differences(a: Config, b: Config) -> list[str]:
    """Dotted keys whose values differ, in the order of the tree; list entries have their index as key."""
    left, right = dict(leaves(to_dict(a))), dict(leaves(to_dict(b)))
    missing = object()
    return [key for key in {**left, **right} if left.get(key, missing) != right.get(key, missing)]


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the keys and values of a YAML file, with safe types only.

    Raises:
        UserError: the file cannot be read, or is not a mapping.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(safe_yaml.MAX_BYTES + 1)
        text = content.decode()
    except FileNotFoundError:
        raise UserError(
            f"{shortened(path)}: there is no such file; give the path of a YAML file, e.g. one of experiments/"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{shortened(path)}: cannot be read as UTF-8 text ({shortened(error)}); give the path of a YAML file"
        ) from error
    if len(content) > safe_yaml.MAX_BYTES:
        raise UserError(f"{path}: has more than {safe_yaml.MAX_BYTES} bytes; a configuration takes far fewer")
    try:
        data = safe_yaml.parse(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = shortened(getattr(error, "problem", None) or error)
        raise UserError(f"{path}{where}: not valid YAML: {problem}; expected `key: value` lines") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UserError(f"{path}: holds {type(data).__name__}, expected `key: value` lines such as `seed: 0`")
    return data


def _override_pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) == 2:
            raise UserError(
                f"{shortened(repr(word))}: expected an option such as `--algo.objective.clip_high 0.28`; `--help` "
                "lists them"
            )
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UserError(f"--{shortened(name)}: has no value; write `--{shortened(name)} VALUE`")
            value = rest.pop(0)
        flaw = text_flaw(name) or text_flaw(value)
        if flaw:
            raise UserError(f"{shortened(ascii(word))}: the name or the value has {flaw}; expected plain text")
        yield name, value


def _put(data: dict[str, Any], name: str, text: str) -> None:
    """Sets the value at a dotted key, through mappings and lists."""
    option = shortened(name)
    path = name.replace("-", "_").split(".") if ".options." not in name else name.split(".")
    node: Any = data
    kind: Any = Config
    for depth, step in enumerate(path):
        here = ".".join(path[:depth]) or "configuration"
        kind = _child_type(kind, step)
        if kind is None:
            raise UserError(f"--{option}: {_unknown_key(path[: depth + 1])}")
        if isinstance(node, list):
            if not (step.isascii() and step.isdigit() and len(step) < 10) or int(step) >= len(node):
                raise UserError(
                    f"--{option}: {shortened(here)} has {len(node)} entries; use an index from 0 to {len(node) - 1}"
                )
            index: Any = int(step)
        else:
            index = step
        if depth == len(path) - 1:
            node[index] = text if kind is str else _scalar(name, text, kind)
            return
        if isinstance(node, dict):
            below = node.get(step)
            if step in node and len(sections_of(kind)) > 1:
                node[step] = _written_out(below)
            elif not isinstance(below, dict | list):
                node[step] = [task.model_dump() for task in Config().tasks] if step == "tasks" else {}
        node = node[index]
        if not isinstance(node, dict | list):
            above = shortened(".".join(path[: depth + 1]))
            raise UserError(f"--{option}: {above} is {_quoted(node)}, expected keys with values")


def _scalar(name: str, text: str, kind: Any) -> Any:
    if text.lower() == "none":
        return "none" if "none" in get_args(kind) else None
    try:
        return safe_yaml.parse(text)
    except yaml.YAMLError:
        raise UserError(
            f"--{shortened(name)}: {shortened(repr(text))} is not a value; write it as in YAML, e.g. 0.28, true or "
            "[1, 2]"
        ) from None


def sections_of(kind: Any) -> list[type[Section]]:
    """The section classes of a type: itself, or the members of a union."""
    parts = get_args(kind) or (kind,)
    return [part for part in parts if isinstance(part, type) and issubclass(part, Section)]


def _child_type(kind: Any, step: str) -> Any:
    """The annotated type below a key; None where the tree has no such key."""
    kind = get_args(kind)[0] if hasattr(kind, "__metadata__") else kind
    if get_origin(kind) is tuple:
        return get_args(kind)[0]
    if get_origin(kind) is dict:
        return get_args(kind)[1]
    found = [part.model_fields[step].annotation for part in sections_of(kind) if step in part.model_fields]
    if len(found) > 1 and all(get_origin(each) is Literal for each in found):
        return Literal[tuple(name for each in found for name in get_args(each))]
    return found[0] if found else None


def every_key(kind: Any = Config, prefix: str = "") -> Iterator[str]:
    """Dotted keys of the tree, its sections included, for all kinds, but not inside lists."""
    for name in dict.fromkeys(name for part in sections_of(kind) for name in part.model_fields):
        key = f"{prefix}.{name}" if prefix else name
        yield key
        below = _child_type(kind, name)
        if get_origin(below) not in (tuple, dict):
            yield from every_key(below, key)


def _unknown_key(path: Sequence[Any], value: Any = None, kind: str = "") -> str:
    """Error message for an unknown key, with the key that may have been meant: a sibling, or one elsewhere.

    Args:
        path: path to the key.
        value: value of the key.
        kind: kind of the field that the key is in; empty if the field has no kinds.
    """
    parent: Any = Config
    for step in path[:-1]:
        parent = _child_type(parent, str(step))
    key, prefix = str(path[-1]), ".".join(map(str, path[:-1]))
    parts = sections_of(parent) if get_origin(parent) not in (tuple, dict) else []
    if kind:
        others = [get_args(part.model_fields["kind"].annotation)[0] for part in parts if key in part.model_fields]
        if others:
            return (
                f"{prefix}.{key} is {_quoted(value)}, which {prefix}.kind {kind} does not have; leave it out, or use "
                f"kind {' or '.join(others)}"
            )
        parts = [part for part in parts if part.model_fields["kind"].default == kind]
    siblings = list(dict.fromkeys(name for part in parts for name in part.model_fields))
    every = list(every_key())
    ends = [end for end in every if key in (end.rpartition(".")[2], "_".join(end.split(".")[-2:]))]
    near = difflib.get_close_matches(key, siblings, n=1)
    last = {end.rpartition(".")[2]: end for end in every}
    if ends:
        hint = f"did you mean {' or '.join(ends)}?"
    elif near:
        hint = f"did you mean {'.'.join(filter(None, (prefix, near[0])))}?"
    elif siblings and (far := difflib.get_close_matches(key, last, n=1)):
        hint = f"did you mean {last[far[0]]}?"
    else:
        hint = f"known keys here: {', '.join(siblings)}" if siblings else "there are no keys below this one"
    return f"unknown key {shortened('.'.join(map(str, path)))}; {hint}"


def _explain(error: ValidationError) -> str:
    """Error message in one line for the first problem that pydantic found."""
    problem = error.errors()[0]
    path: list[Any] = []
    kind: Any = Config
    chosen, of_union = "", False
    for step in problem["loc"]:  # has the names of union members too, which are not keys
        kinds = sections_of(kind)
        if len(kinds) > 1:
            chosen = str(step)
            kind = next(part for part in kinds if part.model_fields["kind"].default == chosen)
            continue
        of_union = get_origin(kind) in (types.UnionType, typing.Union) and not kinds
        if of_union or kind is None:
            break
        path.append(step)
        kind = _child_type(kind, str(step))
    key = ".".join(map(str, path)) or "the file"
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    if problem["type"] == "extra_forbidden":
        return _unknown_key(path, problem["input"], chosen)
    if problem["type"] == "missing":
        return f"the key {key} is missing; give it a value"
    if problem["type"] == "union_tag_invalid":
        return f"{shortened(key)}.kind is {_quoted(problem['ctx']['tag'])}, expected {problem['ctx']['expected_tags']}"
    if len(sections_of(kind)) > 1:
        expected = "a kind, or keys with values"
    elif of_union:
        expected = " or ".join(argument.__name__ for argument in get_args(kind))
    else:
        known = _EXPECTED.get(problem["type"])
        expected = known.format(**problem.get("ctx", {})) if known else shortened(problem["msg"])
    return f"{shortened(key)} is {_quoted(problem['input'])}, expected {expected}"


def _quoted(value: Any) -> str:
    return shortened(json.dumps(value, default=str))


def leaves(node: Any, prefix: str = "", *, lists: bool = True) -> Iterator[tuple[str, Any]]:
    """Values of nested mappings by their dotted keys; with `lists` also the entries of lists, else lists are values."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else key, lists=lists)
    elif isinstance(node, list) and node and lists:
        for index, value in enumerate(node):
            yield from leaves(value, f"{prefix}.{index}")
    else:
        yield prefix, node
