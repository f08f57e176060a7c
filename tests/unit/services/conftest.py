"""Fixtures of helpers."""

from serving import serve  # noqa: F401
