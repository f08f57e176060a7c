import re

import pytest
import tiny_run
from paths import ROOT

from agentrl_jax.config.keys import every_key
from agentrl_jax.config.schema import Config
from agentrl_jax.config.tasks import TaskConfig

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_readme_is_short_and_what_it_imports_is_there():
    assert len(README.splitlines()) <= 150
    (line,) = re.findall("^from agentrl_jax.*", README, re.MULTILINE)
    exec(line, {})


def test_the_ten_lines_print_where_no_random_and_optimal_play_are_known(capsys):
    lines = re.findall(r"^print\((?:summary|result).*", README, re.MULTILINE)
    for line in lines:
        exec(line, {"summary": {"success": {"trained": 0.5}}, "result": {"success": 0.5}})
    assert (len(lines), capsys.readouterr().out) == (2, "0.5 None\n0.5 None\n")


def test_the_tiny_run_of_the_docs_is_that_of_the_tests():
    page = (ROOT / "docs" / "guides" / "api_models.md").read_text(encoding="utf-8")
    (config,), (levels,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("yaml", "text"))
    assert config.strip() == tiny_run.CONFIG.strip().replace("LEVELS", "levels.txt")
    assert levels.strip() == tiny_run.LEVELS.strip()


@pytest.mark.parametrize(
    ("name", "lines"), [("agentrl_jax/environments/guess", 40), ("experiments/custom_environment", 60)]
)
def test_the_environments_shown_are_those_that_are_tested_and_are_short(name, lines):
    source = (ROOT / f"{name}.py").read_text(encoding="utf-8")
    guide = (ROOT / "docs" / "guides" / "own_environment.md").read_text(encoding="utf-8")
    assert f"```python\n{source}```" in guide, f"copy {name}.py into the guide"
    assert len(source.splitlines()) < lines


def test_keys_beside_those_of_other_programs_exist():
    page = (ROOT / "docs" / "guides" / "coming_from.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("|")]
    beside = re.findall(r"`([^`]+)`", "".join(row[2] for row in rows))
    without_theirs = re.sub(r"^\|[^|]*\|", "", page, flags=re.MULTILINE)
    named = re.findall(rf"`((?:{'|'.join(Config.model_fields)})\.[^`\s]+)`", without_theirs)
    assert len(beside) > 50
    assert {*beside, *named} - {*every_key(), *every_key(TaskConfig, "tasks.0.")} == set()


def test_links_and_figures_lead_to_files():
    found = 0
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            found += 1
            assert "://" in target or (page.parent / target).is_file(), (page, target)
    assert found > 50


def test_files_that_are_named_exist():
    """Docs pages in code and experiments; tests, experiments and benchmarks in the docs."""
    parts = ("agentrl_jax", "envs_jax", "experiments", "benchmarks")
    code = [file for part in parts for kind in ("py", "yaml") for file in (ROOT / part).rglob(f"*.{kind}")]
    for file in [*PAGES, *code]:
        text = file.read_text(encoding="utf-8")
        named = re.findall(r"\b(?:docs|experiments|benchmarks|tests)/[\w/.]+\.(?:md|py|yaml|json)\b", text)
        assert not [name for name in named if not (ROOT / name).is_file()], file
