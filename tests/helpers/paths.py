"""Folders of the checkout, and files of them that are no modules of a package."""

import importlib.util
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
"""Recorded values of originals, and of this code where they are held."""


def module_of(file: Path):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
