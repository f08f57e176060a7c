"""Reading, checking, comparing and saving the configuration of a run.

    config = load_config("experiments/demo.yaml", ["--algo.clip_high", "0.28"])

Values are taken in this order: the command line, the YAML file, the preset named by `algo.preset` (for `algo` only),
the defaults in `agentrl_jax.config_tree`. The YAML is read with safe types only and decoded strictly: an unknown key, a
wrong type or a value out of range is a `UserError` that names the key.
"""

import dataclasses
import difflib
import json
import os
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from agentrl_jax import safe_yaml
from agentrl_jax.algos.presets import PRESETS
from agentrl_jax.config_checks import validate
from agentrl_jax.config_tree import (
    AlgoConfig,
    Config,
    EvalConfig,
    ImitationConfig,
    MeshConfig,
    ModelConfig,
    OptimConfig,
    PromptConfig,
    RolloutConfig,
    ServiceConfig,
    TaskConfig,
    TrainConfig,
)
from agentrl_jax.errors import UserError, shortened, text_flaw
from agentrl_jax.rates import with_rates
from agentrl_jax.whole_files import replacing

__all__ = [
    "AlgoConfig",
    "Config",
    "EvalConfig",
    "ImitationConfig",
    "MeshConfig",
    "ModelConfig",
    "OptimConfig",
    "PromptConfig",
    "RolloutConfig",
    "ServiceConfig",
    "TaskConfig",
    "TrainConfig",
    "decode",
    "differences",
    "load_config",
    "load_resolved",
    "read_yaml",
    "save_resolved",
    "to_dict",
    "validate",
]

_ADAPTER = TypeAdapter(Config)

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "keys with values",
    "dataclass_type": "keys with values",
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
        overrides: command line words, `--algo.clip_high 0.28` or `--algo.clip_high=0.28`; entries of lists by their
            index (`--tasks.0.groups 4`), values as in YAML.

    Raises:
        UserError: the file cannot be read, or a key or a value is not what was expected.
    """
    data = read_yaml(path)
    for key, text in _override_pairs(overrides):
        _put(data, key, text)
    config = decode(data, source=f"{path} with the command line" if overrides else f"{path}")
    if not config.run_dir:
        config = dataclasses.replace(config, run_dir=os.path.join("runs", Path(path).stem))
    validate(config)
    return config


def load_resolved(path: str | os.PathLike[str]) -> Config:
    """Reads and checks what `save_resolved` wrote. Files that it names may be gone: not everybody who reads a run needs
    them.

    Raises:
        UserError: as `load_config`, or the file is not whole.
    """
    data = read_yaml(path)
    missing = [name for name in _names(Config) if name not in data]
    if missing:
        raise UserError(
            f"{path}: lacks {missing[0]}, but the file of a run holds every key; put back the whole file or use a new "
            "run folder"
        )
    config = decode(data, source=f"{path}")
    try:
        validate(config, files=False)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return config


def decode(data: Mapping[str, Any], *, source: str = "configuration") -> Config:
    """Turns plain data into a `Config`, with the values of the preset where `algo` gives none.

    Learning rates that are not given are written out, see `agentrl_jax.rates`.

    Args:
        data: nested mappings and lists, as YAML gives them.
        source: what the data is, named at the start of an error message.

    Raises:
        UserError: an unknown key, a missing one, a wrong type or a value out of range.
    """
    data = dict(data)
    algo = data.get("algo") or {}
    if isinstance(algo, Mapping):
        preset = algo.get("preset", AlgoConfig().preset)
        data["algo"] = {**_preset(preset), **algo}
    try:
        return with_rates(_ADAPTER.validate_json(json.dumps(data, default=str)))
    except ValidationError as error:
        raise UserError(f"{source}: {_explain(error)}") from error
    except (ValueError, RecursionError) as error:  # of json.dumps
        raise UserError(f"{source}: holds a part of itself; write its values out") from error


def _quoted(value: Any) -> str:
    return shortened(json.dumps(value, default=str))


def _preset(name: Any) -> dict[str, Any]:
    """The values of a preset as a file would give them; none for a name that is refused later."""
    known = PRESETS.get(name) if isinstance(name, str) else None
    return json.loads(json.dumps(dict(known.values))) if known else {}


def to_dict(config: Config) -> dict[str, Any]:
    """The tree as plain mappings, lists, numbers, text and booleans, ready for YAML or JSON."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def save_resolved(config: Config, path: str | os.PathLike[str]) -> None:
    """Writes every value of the tree to a YAML file, which `load_config` reads back as the same tree."""
    text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True, width=120)
    with replacing(path) as file:
        file.write(text)


def differences(a: Config, b: Config) -> list[str]:
    """Dotted keys whose values differ, in the order of the tree; entries of lists by their index."""
    left, right = dict(_leaves(to_dict(a))), dict(_leaves(to_dict(b)))
    missing = object()
    return [key for key in {**left, **right} if left.get(key, missing) != right.get(key, missing)]


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The keys and values of a file, read with safe types only.

    Raises:
        UserError: it cannot be read, or holds something else.
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
                f"{shortened(repr(word))}: expected an option such as `--algo.clip_high 0.28`; `--help` lists them"
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
        last = depth == len(path) - 1
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
        if last:
            node[index] = text if kind is str else _scalar(name, text)
        else:
            if isinstance(node, dict) and not isinstance(node.get(step), (dict, list)):
                node[step] = [dataclasses.asdict(task) for task in Config().tasks] if step == "tasks" else {}
            node = node[index]
            if not isinstance(node, dict | list):
                above = shortened(".".join(path[: depth + 1]))
                raise UserError(f"--{option}: {above} is {_quoted(node)}, expected keys with values")


def _scalar(name: str, text: str) -> Any:
    if text.lower() == "none":
        return None
    option = shortened(name)
    try:
        return safe_yaml.parse(text)
    except yaml.YAMLError:
        raise UserError(
            f"--{option}: {shortened(repr(text))} is not a value; write it as in YAML, e.g. 0.28, true or [1, 2]"
        ) from None


def _child_type(kind: Any, step: str) -> Any:
    """The annotated type below a key; None where the tree has no such key."""
    kind = _bare(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return _bare(hints[step]) if step in _names(kind) else None
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return arguments[0]
    return arguments[1] if origin is dict else None


def _bare(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _unknown_key(path: Sequence[Any]) -> str:
    """Says that a key does not exist and which one may have been meant: a sibling, or the same name elsewhere."""
    parent: Any = Config
    for step in path[:-1]:
        parent = _child_type(parent, str(step))
    siblings = _names(parent) if dataclasses.is_dataclass(parent) else ()
    key, prefix = str(path[-1]), ".".join(map(str, path[:-1]))
    near = difflib.get_close_matches(key, siblings, n=1)
    elsewhere = [f"{top}.{key}" for top in _names(Config) if key in _section_names(top)]
    if near:
        hint = f"did you mean {'.'.join(filter(None, (prefix, near[0])))}?"
    elif elsewhere:
        hint = f"did you mean {' or '.join(elsewhere)}?"
    else:
        hint = f"known keys here: {', '.join(siblings)}" if siblings else "there are no keys below this one"
    return f"unknown key {shortened('.'.join(map(str, path)))}; {hint}"


def _section_names(top: str) -> tuple[str, ...]:
    kind = typing.get_type_hints(Config)[top]
    return _names(kind) if dataclasses.is_dataclass(kind) else ()


def _explain(error: ValidationError) -> str:
    """One line for the first problem that pydantic found."""
    problem = error.errors()[0]
    path: list[Any] = []
    kind: Any = Config
    for step in problem["loc"]:  # behind a union pydantic appends names of its members, which are not keys
        if kind is None or typing.get_origin(_bare(kind)) in (types.UnionType, typing.Union):
            break
        path.append(step)
        kind = _child_type(kind, str(step))
    key = ".".join(map(str, path)) or "the file"
    if problem["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return _unknown_key(path)
    if problem["type"] == "missing":
        return f"the key {key} is missing; give it a value"
    if typing.get_origin(_bare(kind)) in (types.UnionType, typing.Union) and len(problem["loc"]) > len(path):
        names = [argument.__name__ for argument in typing.get_args(_bare(kind))]
        expected = " or ".join(names)
    else:
        known = _EXPECTED.get(problem["type"])
        expected = known.format(**problem.get("ctx", {})) if known else shortened(problem["msg"])
    return f"{shortened(key)} is {_quoted(problem['input'])}, expected {expected}"


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else key)
    elif isinstance(node, list) and node:
        for index, value in enumerate(node):
            yield from _leaves(value, f"{prefix}.{index}")
    else:
        yield prefix, node
