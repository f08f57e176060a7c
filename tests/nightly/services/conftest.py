"""Fixtures of helpers."""

from bounded import bounded_memory  # noqa: F401
from raw_server import raw_server  # noqa: F401
