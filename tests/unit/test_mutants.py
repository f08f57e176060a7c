"""The tool that plants faults: what it plants, where it looks first, and what counts as noticed."""

import subprocess

import mutant_runs
import mutant_sources
import mutants
import numpy as np
import pytest
import yaml
from mutant_plugin import is_assertion

FILE = "agentrl_jax/algos/made_up.py"
CODE = "def add(a: int | None, b):\n    '''Sums 1 | 2.'''\n    return a + b\n\n\ndef less(a, b):\n    return a < b\n"


@pytest.fixture
def checkout(tmp_path):
    for name, text in {
        FILE: CODE,
        "tests/unit/algos/test_other.py": "from agentrl_jax.algos import made_up\n",
        "tests/unit/algos/test_made_up.py": "",
        "tests/unit/algos/test_made.py": "",
        "tests/unit/algos/test_first.py": "",
        "tests/unit/text/test_made_up.py": "",
        "tests/property/test_some.py": "import agentrl_jax.algos\n",
        "tests/golden/test_none.py": "import agentrl_jax.text\n",
        "ignored/x": "",
        ".gitignore": "ignored\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def entry(text, replacement):
    return {"file": FILE, "text": text, "replacement": replacement, "kind": "sign"}


def test_a_written_fault_changes_its_place_alone(checkout):
    (mutant,) = mutant_sources.written([entry("a + b", "a - b")], checkout)
    assert mutant.code == CODE.replace("a + b", "a - b")
    assert (mutant.folder, mutant.line, mutant.changed) == ("agentrl_jax/algos", 3, "return a - b")


@pytest.mark.parametrize(
    ("text", "replacement", "said"), [("return a", "return b", "2 times"), ("c", "d", "0 times"), ("+", "+", "itself")]
)
def test_a_text_that_does_not_say_which_fault_is_refused(checkout, text, replacement, said):
    with pytest.raises(ValueError, match=said):
        mutant_sources.written([entry(text, replacement)], checkout)


def test_every_written_fault_has_its_place_and_every_folder_enough():
    every = mutant_sources.written(yaml.safe_load(mutants.LIST.read_text()))
    assert len(every) >= 70
    assert min(sum(mutant.folder == folder for mutant in every) for folder in mutant_sources.FOLDERS) >= 8


def test_generated_faults_are_those_of_the_seed_and_are_code(checkout):
    pytest.importorskip("cosmic_ray", reason="cosmic-ray is not installed")
    found = list(mutant_sources.generated("agentrl_jax/algos", 0, checkout))
    assert [mutant.code for mutant in mutant_sources.generated("agentrl_jax/algos", 0, checkout)] == [
        x.code for x in found
    ]
    assert {mutant.line for mutant in found} == {3, 7}  # no annotation, and no text
    for mutant in found:
        compile(mutant.code, FILE, "exec")
        assert sum(a != b for a, b in zip(CODE.splitlines(), mutant.code.splitlines())) == 1


def test_the_nearest_tests_come_first(checkout):
    by_name = ["tests/unit/algos/test_made_up.py", "tests/unit/algos/test_made.py"]
    importing = ["tests/unit/algos/test_other.py"]
    others = ["tests/unit/algos/test_first.py", "tests/property/test_some.py"]
    assert mutant_runs.nearest_tests(FILE, checkout) == [*by_name, *importing, *others]


def test_a_copy_has_what_git_would_have(checkout, tmp_path_factory):
    subprocess.run(["git", "init", "-q"], cwd=checkout, check=True)
    copy = mutant_runs.copied(checkout, tmp_path_factory.mktemp("copy"))
    names = sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
    assert FILE in names
    assert ".gitignore" in names
    assert "ignored/x" not in names


def failure(function):
    try:
        function()
    except (Exception, pytest.fail.Exception) as error:
        return error
    raise RuntimeError("it passed")


def test_what_counts_as_noticed():
    def raises_nothing():
        with pytest.raises(ValueError, match="x"):
            pass

    assert is_assertion(failure(lambda: np.testing.assert_allclose(1.0, 2.0)))
    assert is_assertion(failure(raises_nothing))
    assert is_assertion(ExceptionGroup("two", [AssertionError(), AssertionError()]))
    assert not is_assertion(ExceptionGroup("two", [AssertionError(), TypeError()]))
    assert not is_assertion(failure(lambda: pytest.fail("Timeout (>120.0s) from pytest-timeout.")))
    assert not is_assertion(failure(lambda: [][1]))


def test_the_table_counts_by_folder():
    rows = {"algos": [("killed", "x", 2.0), ("survived", "", 3.0)], "text": [("killed", "y", 4.0)]}
    lines = [line.split() for line in mutants.table(rows).splitlines()]
    assert lines[0] == ["folder", *mutants.OUTCOMES, "seconds"]
    assert lines[1:] == [
        ["algos", "1", "0", "0", "0", "1", "5"],
        ["text", "1", "0", "0", "0", "0", "4"],
        ["all", "2", "0", "0", "0", "1", "9"],
    ]
