import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT

PACKAGE = ROOT / "agentrl_jax"
LAYERS = (
    ("__main__",),
    ("api", "cli", "rules"),
    ("studies",),
    ("model_server", "train"),
    ("viewer",),
    ("evaluate",),
    ("offline",),
    ("formats",),
    ("setup",),
    ("runs", "services"),
    ("learner",),
    ("rollout",),
    ("parallel", "retrieval", "text"),
    ("models",),
    ("algos",),
    ("config",),
    ("json_files",),
    ("io", "safe_yaml", "stopping", "strict_json", "terminal"),
    ("environments",),
    ("errors", "service_names"),
)
"""Folders and files of the package from top to bottom; those of one row do not import each other."""
ROW = {name: number for number, names in enumerate(LAYERS) for name in names}


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            above = f"{node.module}." if getattr(node, "module", None) else ""
            found |= {above + name.name for name in node.names}
    return {name for name in found if name.startswith("agentrl_jax.")}


def test_imports_point_downwards():
    upwards, rooms = [], set()
    for file in PACKAGE.rglob("*.py"):
        here = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if file != PACKAGE / "__init__.py":
            rooms.add(here)
            found = {name for name in imports(file) if (room := name.split(".")[1]) != here and ROW[room] <= ROW[here]}
            upwards += [f"{file}: {name}" for name in found]
    assert upwards == []
    assert rooms == ROW.keys()
    files = (PACKAGE.parent / "envs_jax").rglob("*.py")
    assert [file for file in files if imports(file)] == [], "environments do not know the package"


DOOR = {
    "agentrl_jax/environments/kinds.py",
    "agentrl_jax/environments/loading.py",
    "agentrl_jax/service_names.py",
    "agentrl_jax/services/catalog.py",
}
"""The files that may know which kinds of environments there are; others read traits, or call methods."""
CLASSES = {"CompiledEnv", "HostEnv", "MixedEnv", "RetryEnv", "HostTask", "Task", "ServedTask", "PythonTask"}
FLAGS = {"served", "python"}
LISTS = {"TEXT_SERVICES", "REMOTE_ONLY", "is_path", "is_compiled_path"}
REGISTERED = {"registered()", "registry.registered()", "envs_jax.registered()"}
KINDS = {"compiled", "python", "service", "compiled environments", "Python environments", "services"}
WITH_HASATTR = {
    "agentrl_jax/runs/checkpoint.py": "leaves of a state, of which some are arrays",
    "agentrl_jax/runs/checkpoint_leaves.py": "the same",
    "agentrl_jax/services/environments/compiled.py": "a method that compiled environments need not have",
    "envs_jax/testing.py": "checks whether environments keep their contract",
}


def questions(tree: ast.AST) -> Iterator[str]:
    """What asks for the kind of an environment, or for what an object happens to have."""
    for node in ast.walk(tree):
        called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if called == "isinstance":
            yield from {x.id for x in ast.walk(node.args[1]) if isinstance(x, ast.Name)} & CLASSES
        elif called == "hasattr":
            yield called
        elif isinstance(node, ast.ImportFrom) and node.module == "agentrl_jax.environments.kinds":
            yield from (name.name for name in node.names if name.name.startswith("_"))
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            name, known = (node.attr, FLAGS | LISTS) if isinstance(node, ast.Attribute) else (node.id, LISTS)
            yield from {name} & known
        elif isinstance(node, ast.Compare | ast.match_case):
            parts = list(ast.walk(node.pattern if isinstance(node, ast.match_case) else node))
            yield from {x.value for x in parts if isinstance(x, ast.Constant) and isinstance(x.value, str)} & KINDS
            yield from {ast.unparse(x) for x in parts if isinstance(x, ast.Call)} & REGISTERED


def test_the_kind_of_an_environment_is_asked_for_at_the_door_only():
    files = [file for room in ("agentrl_jax", "envs_jax") for file in (ROOT / room).rglob("*.py")]
    found = {file.relative_to(ROOT).as_posix(): set(questions(ast.parse(file.read_text()))) for file in files}
    asking = {name: sorted(asked) for name, asked in found.items() if asked}
    assert {name: asked for name, asked in asking.items() if name not in DOOR | WITH_HASATTR.keys()} == {}
    assert {name for name in WITH_HASATTR if asking.get(name) != ["hasattr"]} == set()
    own = ROOT / "agentrl_jax/services/environments/wordle"
    assert [file for file in files if own not in file.parents and "wordle" in file.read_text().lower()] == []


@pytest.mark.parametrize(
    "asked",
    [
        "isinstance(env, CompiledEnv | Any)",
        "kind == 'compiled'",
        "'service' in config.kinds",
        "config.served",
        "is_path(name)",
        "name in registry.registered()",
        "hasattr(env, 'plan')",
        "from agentrl_jax.environments.kinds import _SERVICE",
        "match kind:\n    case 'python': ...",
    ],
)
def test_questions_are_noticed(asked):
    assert len(set(questions(ast.parse(asked)))) == 1


def test_traits_are_no_questions():
    assert not set(questions(ast.parse("kind_of(name).has_items and kind.on_host and style == 'chat'")))
