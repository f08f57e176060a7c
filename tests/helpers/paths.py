"""Folders of the checkout."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
"""Recorded values of originals, and of this code where they are held."""
