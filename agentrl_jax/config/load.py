"""Reads a configuration: YAML with command-line overrides over the values of a preset, then checks.

The YAML is read with safe types only and decoded strictly: an unknown key, a wrong type or a value out of range is a
`UserError` that names the key.
"""

import contextlib
import copy
import importlib.metadata
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import ValidationError

from agentrl_jax import safe_yaml
from agentrl_jax.config import presets, shipped
from agentrl_jax.config.advantages import with_terms
from agentrl_jax.config.agents import MOVED, with_agent
from agentrl_jax.config.algo import AlgoConfig
from agentrl_jax.config.checks import validate
from agentrl_jax.config.defaults import with_defaults
from agentrl_jax.config.fields import Section, is_own
from agentrl_jax.config.keys import child_type, for_value, kind_of, sections_of, takes_own, unknown_key
from agentrl_jax.config.migrations import FORMAT, migrated
from agentrl_jax.config.optim import with_optimizer
from agentrl_jax.config.rewards import with_kinds
from agentrl_jax.config.schema import Config
from agentrl_jax.errors import BadValue, UserError, shortened, text_flaw
from agentrl_jax.io import atomic_write

_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
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
    "string_pattern_mismatch": "module:function",
    "greater_than": "a number above {gt:.10g}",
    "greater_than_equal": "a number of at least {ge:.10g}",
    "less_than": "a number below {lt:.10g}",
    "less_than_equal": "a number of at most {le:.10g}",
}
_KINDS = {
    name: field.default.model_dump(include={"kind"})
    for name, field in AlgoConfig.model_fields.items()
    if isinstance(field.default, Section)
}
"""Fields of `algo` that have a kind, and their default kinds."""


def load_config(
    path: str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[Any] | Mapping[str, Any] = ()
) -> Config:
    """Reads a YAML file, or the configuration of the run in a folder, applies overrides and checks the result.

    A name such as demo stands for an experiment that comes with the package, see `shipped`. Instead of a file its
    content can be given, as mappings and lists. `overrides` are values by dotted key,
    `{"algo.objective.clip_high": 0.28}`, or words of the command line, `--algo.objective.clip_high 0.28` or
    `--algo.objective.clip_high=0.28`; entries of lists are given by their index (`tasks.0.groups`), texts as in YAML.

    Raises:
        UserError: the file cannot be read, or a key or a value is not what was expected.
    """
    if isinstance(path, Mapping):
        name, stem, data = "the given values", "run", _of_today(copy.deepcopy(dict(path)), "the given values")
    elif os.path.isdir(path):
        name, stem = os.fspath(path), ""
        data = _of_today({"format": 0, **read_yaml(os.path.join(name, "config.yaml"))}, name) | {"run_dir": name}
        _refuse_new_kinds(data, name)
    else:
        name, stem, data = os.fspath(path), Path(path).stem, _of_today(read_yaml(path), path)
    words = () if isinstance(overrides, Mapping) else overrides
    for key, value in overrides.items() if isinstance(overrides, Mapping) else _override_pairs([*map(str, words)]):
        _put(data, key, value)
    more = " with the command line" if words else " with the overrides" if overrides else ""
    config = decode(data, source=f"{name}{more}")
    if not config.run_dir:
        config = config.replace(run_dir=os.path.join("runs", stem))
    config = config.replace(run_dir=os.path.expanduser(config.run_dir))
    validate(config)
    return config


def load_resolved(path: str | os.PathLike[str]) -> Config:
    """Reads and checks what `save_resolved` wrote. Files named in it may be missing, since not every reader needs them.

    Raises:
        UserError: as `load_config`, or the file is incomplete or from another version.
    """
    data = {"format": 0, **read_yaml(path)}
    of_today = data["format"] == FORMAT
    data = _of_today(data, path)
    _refuse_new_kinds(data, path)
    missing = [name for name in Config.model_fields if name not in data]
    if missing:
        raise UserError.at(
            path, f"lacks {missing[0]}, but a run's file has every key; use a new run folder", missing[0]
        )
    try:
        config = decode(data, source=f"{path}")
        if of_today:  # what an earlier version wrote was checked by it
            validate(config, files=False)
    except UserError as error:
        text = str(error).removeprefix(f"{path}: ")
        if "unknown key" in text:
            folder = Path(path).parent
            text += f"; if {folder} was written by another version of agentrl, use that version, or a new run folder"
        raise UserError(f"{path}: {text}", key=error.key, value=error.value) from error
    return config


def _refuse_new_kinds(data: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Refuses the folder of a run that names a function which has not been imported: no run brings code with it."""
    parts = {"optim": data.get("optim"), **_below(data, "algo")}
    terms = parts["algo.advantage"].get("terms") if isinstance(parts.get("algo.advantage"), Mapping) else ()
    terms = [term.get("rule") if isinstance(term, Mapping) else None for term in terms or ()]
    parts |= {f"algo.advantage.{index}": rule for index, rule in enumerate(terms)}
    for key, part in (parts | _below(data, "algo", "rewards") | _below(data, "train", "metrics")).items():
        if isinstance(part, Mapping) and is_own(part.get("kind")) and not part.get("source"):
            why = "but lacks its source, so that this is no folder that a run has written; restore config.yaml"
            raise UserError.after(path, BadValue.of(key, part["kind"], why))


def _below(data: Any, *path: str) -> dict[str, Any]:
    """What a mapping in the data has, by dotted keys."""
    for name in path:
        data = data.get(name) if isinstance(data, Mapping) else None
    return {".".join((*path, f"{name}")): part for name, part in data.items()} if isinstance(data, Mapping) else {}


def _of_today(data: dict[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a file that a version wrote, without its `format` and `version`, with the keys of today.

    A file that a person wrote has no `format`, and the keys of today.
    """
    number, version = data.pop("format", FORMAT), data.pop("version", None) or "of unknown version"
    if type(number) is not int or not 0 <= number <= FORMAT:
        why = f"expected 0 to {FORMAT}: agentrl {version} wrote the file; install that version or a newer one"
        raise UserError.of(f"{path}: format", number, why)
    try:
        return with_agent(migrated(data, number))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        what = f"no whole configuration of format {number} ({type(error).__name__}: {error})"
        raise UserError.at(path, f"{what}; restore the file, or use a new run folder", number) from error


def decode(data: Mapping[str, Any], *, source: str = "configuration") -> Config:
    """Turns nested mappings and lists into a `Config`; `source` is named in error messages.

    Values missing in `algo` come from the preset, others that are not given and depend on the rest from `defaults`.

    Raises:
        UserError: an unknown key, a missing one, a wrong type or a value out of range.
    """
    data = with_kinds(with_optimizer(with_agent(dict(data))))
    algo = data.get("algo") or {}
    if isinstance(algo, Mapping):
        name = algo.get("preset", AlgoConfig().preset)
        preset = presets.read_preset(name).values if name in presets.NAMES else {}
        data["algo"] = merged(merged(_KINDS, preset), algo)
    if isinstance(stages := data.get("stages"), list | tuple):
        data["stages"] = [{"kind": stage} if isinstance(stage, str) else stage for stage in stages]
    try:
        return with_defaults(Config.model_validate_json(json.dumps(data, default=str)))
    except ValidationError as error:
        raise UserError.after(source, _explain(error)) from error
    except (ValueError, RecursionError) as error:  # from json.dumps
        raise UserError.at(source, "holds a part of itself; write its values out") from error


def merged(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides keys of `algo`. A field with a kind is merged key by key if the kind is the same, else replaced."""
    result = {key: _with_kind(value) if key in _KINDS else value for key, value in base.items()}
    for key, value in given.items():
        value = with_terms(value) if key == "advantage" else value
        if key in _KINDS:
            value, below = _with_kind(value), result.get(key)
            if isinstance(value, dict) and isinstance(below, dict):
                same = value.get("kind", below.get("kind")) == below.get("kind", value.get("kind"))
                value = {**below, **value} if same else value
        result[key] = value
    return result


def _with_kind(value: Any) -> Any:
    """Expands a field with a kind that was given by its kind alone; null means the kind none."""
    return {"kind": value or "none"} if value is None or isinstance(value, str) else value


def to_dict(config: Config) -> dict[str, Any]:
    """The tree as plain mappings, lists, numbers, text and booleans, ready for YAML or JSON."""
    return config.model_dump(mode="json")


def installed_version() -> str | None:
    """The version of this package; None where it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("agentrl_jax")
    return None


def save_resolved(config: Config, path: str | os.PathLike[str]) -> None:
    """Writes every value of the tree to a YAML file, which `load_config` reads back as the same tree."""
    data = {"format": FORMAT, "version": installed_version(), **to_dict(config)}
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    with atomic_write(path) as file:
        file.write(text)


def differences(a: Config, b: Config) -> list[str]:
    """Dotted keys whose values differ, in the order of the tree; list entries have their index as key."""
    left, right = dict(leaves(to_dict(a))), dict(leaves(to_dict(b)))
    missing = object()
    return [key for key in {**left, **right} if left.get(key, missing) != right.get(key, missing)]


def leaves(node: Any, prefix: str = "", *, lists: bool = True) -> Iterator[tuple[str, Any]]:
    """Values of nested mappings by their dotted keys; with `lists` also the entries of lists, else lists are values."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if lists and isinstance(node, list) else ()
    if node and items:
        for key, value in items:
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key), lists=lists)
    else:
        yield prefix, node


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the keys and values of a YAML file, with safe types only; raises UserError if that is not possible."""
    name, own = shortened(path), shipped.find(path)
    try:
        with open(own or path, "rb") as file:
            content = file.read(safe_yaml.MAX_BYTES + 1)
        text = content.decode()
    except FileNotFoundError:
        raise UserError.at(
            name,
            "no such file; give the path of a YAML file, or the name of an experiment that `agentrl train --list` "
            "lists; `agentrl train --help` lists all keys",
        ) from None
    except (OSError, ValueError) as error:
        raise UserError.at(name, f"cannot be read as UTF-8 text ({shortened(error)}); give a YAML file") from error
    if len(content) > safe_yaml.MAX_BYTES:
        raise UserError.at(path, f"has more than {safe_yaml.MAX_BYTES} bytes; a configuration takes far fewer")
    try:
        data = safe_yaml.parse(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = shortened(getattr(error, "problem", None) or error)
        raise UserError(f"{path}{where}: not valid YAML: {problem}; expected `key: value` lines", key=path) from error
    if data is not None and not isinstance(data, dict):
        raise UserError.at(
            path, f"holds {type(data).__name__}, expected `key: value` lines such as `seed: 0`", type(data).__name__
        )
    return shipped.with_own_files(data) if own else data or {}


def _override_pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or len(word) == 2:
            example = "`--algo.objective.clip_high 0.28`; `--help` lists them"
            raise UserError.at(word, f"expected an option such as {example}")
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UserError.at(word, f"has no value; write `{shortened(word)} VALUE`")
            value = rest.pop(0)
        yield name, value


def _put(data: dict[str, Any], name: str, value: Any) -> None:
    """Sets the value at a dotted key, through mappings and lists; a text is read as on the command line."""
    option = f"--{shortened(name)}"
    if not isinstance(name, str):
        raise UserError.at(option, f"a key is {type(name).__name__}; expected text such as algo.preset", name)
    flaw = text_flaw(name) or (text_flaw(value) if isinstance(value, str) else "")
    if flaw:
        raise UserError.at(option, f"the name or the value has {flaw}; expected plain text")
    name = name if ".options." in name else name.replace("-", "_")
    path = MOVED.get(name, name).split(".")
    node: Any = data
    kind: Any = Config
    if path[:2] == ["algo", "schedules"] and len(path) > 4:  # whose keys are dotted themselves
        path[2:-1] = [".".join(path[2:-1])]
    for depth, step in enumerate(path, 1):
        parent, key, above = kind, step, shortened(".".join(path[: depth - 1]))
        kind = child_type(parent, step)
        if kind is None and not (depth == len(path) and takes_own(parent)):  # else whether there is such a parameter
            raise UserError.after(option, unknown_key(path[:depth]))  # is asked when the function is imported
        if isinstance(node, list):
            if not (step.isascii() and step.isdigit() and len(step) < 10 and int(step) < len(node)):
                why = f"{above} has {len(node)} entries; use an index from 0 to {len(node) - 1}"
                raise UserError.at(option, why)
            key = int(step)  # type: ignore[assignment]
        elif not isinstance(node, dict):
            raise UserError.after(option, BadValue.of(above, node, "expected keys with values"))
        if depth == len(path):
            node[key] = value if kind is str or not isinstance(value, str) else _scalar(option, value, kind)
            return
        if isinstance(node, dict):
            if key in node and len(sections_of(kind)) > 1:
                node[key] = _with_kind(node[key])
            elif not isinstance(node.get(key), dict | list):
                node[key] = to_dict(Config())["tasks"] if key == "tasks" else {}
        node = node[key]


def _scalar(option: str, text: str, kind: Any) -> Any:
    if text.lower() == "none":
        return "none" if "none" in get_args(kind) else None
    try:
        return safe_yaml.parse(text)
    except yaml.YAMLError:
        raise UserError.of(option, text, "which is not a value; write it as in YAML: 0.28, true or [1, 2]") from None


def _explain(error: ValidationError) -> Exception:
    """The refusal of the first problem that pydantic found."""
    problem = error.errors()[0]
    code, given, same = problem["type"], problem["input"], [problem]
    path: list[Any] = []
    kind: Any = Config
    chosen = ""
    for step in problem["loc"]:
        kinds = sections_of(kind)
        if len(kinds) > 1:  # the step is the kind of a section, which is no key
            chosen = str(step)
            kind = next(part for part in kinds if kind_of(part) == chosen)
        elif kind is None or (get_args(kind) and not kinds and get_origin(kind) in (Union, UnionType)):
            # The step is one of the types of the value; there is a problem for each of them.
            same = [each for each in error.errors() if each["loc"][:-1] == problem["loc"][:-1]]
            break
        else:
            path.append(step)
            kind = child_type(kind, str(step))
    key = shortened(".".join(map(str, path))) or "the file"
    if code == "value_error":
        return problem["ctx"]["error"]
    if code == "extra_forbidden":
        return unknown_key(path, given, chosen)
    if code == "missing":
        return BadValue(f"the key {key} is missing; give it a value", key=key)
    if code == "union_tag_invalid":
        return BadValue.of(f"{key}.kind", problem["ctx"]["tag"], f"expected {problem['ctx']['expected_tags']}")
    if len(sections_of(kind)) > 1:
        return BadValue.of(key, given, "expected a kind, or keys with values")
    meant = for_value(key) if code in ("model_type", "tuple_type") else ""
    return BadValue.of(key, given, f"expected {' or '.join(map(expected, same))}{meant}")


def expected(problem: Mapping[str, Any]) -> str:
    """What was expected where pydantic found a problem, in words."""
    known = _EXPECTED.get(problem["type"])
    return known.format(**problem.get("ctx", {})) if known else shortened(problem["msg"])
