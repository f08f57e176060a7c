"""Fixtures of helpers."""

from bounded import bounded_memory  # noqa: F401
