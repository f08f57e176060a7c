"""The README shows code that is tested elsewhere, word for word."""

from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_environment_shown_is_the_one_that_is_tested_and_is_short():
    source = (ROOT / "experiments" / "custom_environment.py").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```python\n{source}```" in readme, "copy experiments/custom_environment.py into README.md"
    assert len(source.splitlines()) < 60
