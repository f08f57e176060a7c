"""Code in the README and the docs runs as written, and their links are valid."""

import ast
import importlib
import json
import re

import pytest
import tiny_run
from paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOK = ROOT / "docs" / "notebooks" / "first_steps.ipynb"


def test_what_the_readme_imports_is_there():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    imported = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    names = [(node.module, name.name) for node in imported for name in node.names]
    assert names
    assert [name for module, name in names if not hasattr(importlib.import_module(module), name)] == []


def test_the_ten_lines_print_where_no_random_and_optimal_play_are_known(capsys):
    code = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^print\((?:summary|result).*", code, re.MULTILINE)
    for line in lines:
        exec(line, {"summary": {"success": {"trained": 0.5}}, "result": {"success": 0.5}})
    assert (len(lines), capsys.readouterr().out) == (2, "0.5 None\n0.5 None\n")


def test_the_tiny_run_of_the_docs_is_that_of_the_tests():
    page = (ROOT / "docs" / "guides" / "api_models.md").read_text(encoding="utf-8")
    (config,), (levels,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("yaml", "text"))
    assert config.strip() == tiny_run.CONFIG.strip().replace("LEVELS", "levels.txt")
    assert levels.strip() == tiny_run.LEVELS.strip()


def test_the_notebook_is_stored_with_the_outputs_of_its_last_run():
    for cell in cells():
        if cell["cell_type"] == "code":
            shown = "".join(cell["source"])
            assert ("print(" in shown or "plt.show" in shown) == bool(cell["outputs"]), shown
    outputs = [output for cell in cells() for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert {output.get("name") for output in outputs} == {"stdout", None}, "no warnings"


def test_the_environment_shown_is_the_one_that_is_tested_and_is_short():
    source = (ROOT / "experiments" / "custom_environment.py").read_text(encoding="utf-8")
    guide = (ROOT / "docs" / "guides" / "own_environment.md").read_text(encoding="utf-8")
    assert f"```python\n{source}```" in guide, "copy experiments/custom_environment.py into the guide"
    assert len(source.splitlines()) < 60


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_figures_lead_to_files(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).is_file(), target


def test_files_that_are_named_exist():
    """Docs pages in code and experiments; tests, experiments and benchmarks in the docs."""
    code = [
        file for part in ("agentrl_jax", "envs_jax", "experiments", "benchmarks") for file in (ROOT / part).rglob("*")
    ]
    for file in [*PAGES, *(file for file in code if file.suffix in (".py", ".yaml"))]:
        text = file.read_text(encoding="utf-8")
        named = re.findall(r"\b(?:docs|experiments|benchmarks|tests)/[\w/.]+\.(?:md|py|yaml|json)\b", text)
        assert not [name for name in named if not (ROOT / name).is_file()], file


def cells() -> list[dict]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
