import mutant_runs
import mutant_sources
import mutants
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
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_written_fault_changes_its_place_alone_or_is_refused(checkout):
    def written(text, replacement):
        entry = {"file": FILE, "text": text, "replacement": replacement, "kind": "sign"}
        return mutant_sources.written([entry], checkout)

    (mutant,) = written("a + b", "a - b")
    assert mutant.code == CODE.replace("a + b", "a - b")
    assert (mutant.folder, mutant.line, mutant.changed) == ("agentrl_jax/algos", 3, "return a - b")
    for text, replacement, said in (("return a", "return b", "2 times"), ("c", "d", "0 times"), ("+", "+", "itself")):
        with pytest.raises(ValueError, match=said):
            written(text, replacement)


def test_every_written_fault_has_its_place_and_every_folder_enough():
    every = mutant_sources.written(yaml.safe_load(mutants.LIST.read_text()))
    assert len(every) >= 70
    assert min(sum(mutant.folder == folder for mutant in every) for folder in mutant_sources.FOLDERS) >= 8


def test_generated_faults_are_those_of_the_seed_and_are_code(checkout):
    pytest.importorskip("cosmic_ray", reason="cosmic-ray is not installed")
    found, again = (list(mutant_sources.generated("agentrl_jax/algos", 0, checkout)) for _ in range(2))
    assert found == again
    assert {mutant.line for mutant in found} == {3, 7}  # no annotation, and no text
    for mutant in found:
        compile(mutant.code, FILE, "exec")
        assert sum(a != b for a, b in zip(CODE.splitlines(), mutant.code.splitlines())) == 1


def test_the_nearest_tests_come_first(checkout):
    by_name = ["tests/unit/algos/test_made_up.py", "tests/unit/algos/test_made.py"]
    importing = ["tests/unit/algos/test_other.py"]
    others = ["tests/unit/algos/test_first.py", "tests/property/test_some.py"]
    assert mutant_runs.nearest_tests(FILE, checkout) == [*by_name, *importing, *others]
    (checkout / "tests/unit/algos/test_first.py").write_text("SomePart()\n")
    assert mutant_runs.nearest_tests("agentrl_jax/algos/some_part/unknown.py", checkout) == [others[0]]
    # A file of a part is looked for by the tests of its name too.
    assert mutant_runs.nearest_tests("agentrl_jax/algos/some_part/made.py", checkout) == [*by_name[::-1], others[0]]


def test_what_counts_as_noticed():
    raises = pytest.fail.Exception
    assert is_assertion(raises("DID NOT RAISE <class 'ValueError'>"))
    assert not is_assertion(raises("Timeout (>120.0s) from pytest-timeout."))
    assert is_assertion(ExceptionGroup("two", [AssertionError(), AssertionError()]))
    assert not is_assertion(ExceptionGroup("two", [AssertionError(), TypeError()]))
