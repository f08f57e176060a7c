import ast
from pathlib import Path

from paths import ROOT

PACKAGE = ROOT / "agentrl_jax"
LAYERS = (
    ("__main__",),
    ("api", "cli"),
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
    ("parallel", "text"),
    ("models",),
    ("algos",),
    ("config",),
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
