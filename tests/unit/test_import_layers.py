"""Imports point downwards only, between the folders of the package."""

import ast
from pathlib import Path

from paths import ROOT

PACKAGE = ROOT / "agentrl_jax"
LAYERS = (
    ("__main__",),
    ("api", "cli"),
    ("studies",),
    ("model_server", "train"),
    ("evaluate", "viewer"),
    ("formats",),
    ("setup",),
    ("runs", "services"),
    ("learner",),
    ("rollout",),
    ("parallel", "text"),
    ("models",),
    ("algos",),
    ("config",),
    ("io", "safe_yaml", "stopping", "strict_json", "terminal"),
    ("errors", "service_names"),
)
"""Folders and files of the package from top to bottom; those of one row do not import each other."""
ROW = {name: number for number, names in enumerate(LAYERS) for name in names}


def room(module: str) -> str:
    """Returns the folder or file directly below the package that contains a module."""
    return module.split(".")[1]


def imports(file: Path) -> set[str]:
    """Returns the modules of the package that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return {name for name in found if name.startswith("agentrl_jax.")}


FILES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


def test_every_folder_and_file_has_its_layer():
    assert {file.relative_to(PACKAGE).parts[0].removesuffix(".py") for file in FILES} == ROW.keys()


def test_imports_point_downwards():
    upwards = []
    for file in FILES:
        here = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        above = [name for name in imports(file) if room(name) != here and ROW[room(name)] <= ROW[here]]
        upwards += [f"{file}: {name}" for name in above]
    assert upwards == []


def test_environments_do_not_know_the_package():
    files = (PACKAGE.parent / "envs_jax").rglob("*.py")
    assert [file for file in files if imports(file)] == []
