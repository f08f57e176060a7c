"""Requirements of some tests on the machine."""

import importlib.util
import shutil

import pytest

needs_java = pytest.mark.skipif(
    importlib.util.find_spec("scienceworld") is None or shutil.which("java") is None,
    reason="scienceworld or Java is not installed",
)
