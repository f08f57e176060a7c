"""Every refusal of a configuration names its key and its value: by the schema, and by the code."""

import ast
from pathlib import Path
from typing import get_args, get_origin

import pytest
from refusing import refusal

import agentrl_jax
import envs_jax
from agentrl_jax.config import Config, decode
from agentrl_jax.config.fields import OWN
from agentrl_jax.config.keys import child_type, every_key, kind_of, sections_of
from agentrl_jax.errors import shown

MAPPINGS = "algo.schedules", "algo.rewards", "train.metrics", "tasks"


@pytest.mark.parametrize("key", [key for key in every_key() if key not in MAPPINGS])
def test_a_value_of_a_wrong_type_is_refused_for_every_key(key):
    above, _, name = key.rpartition(".")
    kind, data, node = Config, {}, None
    for step in filter(None, above.split(".")):
        kind = child_type(kind, step)
        node = (data if node is None else node).setdefault(step, {})
    parts = [part for part in sections_of(kind) if name in part.model_fields]
    field = child_type(kind, name)
    value = 7 if field is str or str in get_args(field) else "?"
    node = data if node is None else node
    if len(sections_of(kind)) > 1 and name != "kind":
        node["kind"] = "my_rules:mine" if kind_of(parts[0]) == OWN else kind_of(parts[0])
    node[name] = value
    error = refusal(decode, data)
    several = len(sections_of(field)) > 1  # a text is its kind
    assert (error.key, error.value) == (f"{key}.kind" if several else key, value)
    assert f"{error.key} is {shown(value)}, expected " in str(error)
    assert get_origin(field) is not dict or name in ("numbers", "static")


def calls():
    for package in (agentrl_jax, envs_jax):
        for file in sorted(Path(package.__file__).parent.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call):
                    yield file, node


REFUSALS = ("UserError", "BadValue", "ValueError", "WeightsError", "CheckpointError", "TopologyError")
REFUSALS += ("MissingPackageError",)
ELSEWHERE = ("why", "what", "error", "refused", "text", "given", "wrong", "message")
"""Parts of a message that were made before, and may name anything."""


def is_named(part, message):
    """Whether a message has a part: literally, by the same expressions, or possibly in what was made before."""
    found = {ast.unparse(node) for node in ast.walk(message) if isinstance(node, ast.expr)}
    if isinstance(message, (ast.Name, ast.Call)) or found & {*ELSEWHERE}:
        return True
    if isinstance(part, ast.Constant):
        return str(part.value) in ast.unparse(message)
    if isinstance(part, ast.Tuple):
        return all(is_named(each, message) for each in part.elts)
    values = getattr(part, "values", ())
    parts = [each.value for each in values if isinstance(each, ast.FormattedValue)]
    return all(ast.unparse(each) in found for each in parts) if parts else ast.unparse(part) in found


def flaw(call):
    """What is wrong with a call that makes a refusal; `of` and `at` write what they are given into the message."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    if not isinstance(owner, ast.Name) or owner.id not in REFUSALS:
        return None
    if owner is not call.func:
        unnamed = call.func.attr == "at" and len(call.args) > 2 and not is_named(call.args[2], call.args[1])
        return "the message does not name the value" if unnamed else None
    given = dict(zip(("key", "value"), call.args[1:])) | {each.arg: each.value for each in call.keywords}
    if not {"key", None} & given.keys():
        return "no key"
    unnamed = [name for name in ("key", "value") if name in given and not is_named(given[name], call.args[0])]
    return f"the message does not name the {unnamed[0]}" if unnamed else None


def test_every_refusal_of_the_code_has_a_key_and_names_it():
    assert [f"{file}:{node.lineno}: {flaw(node)}" for file, node in calls() if flaw(node)] == []
