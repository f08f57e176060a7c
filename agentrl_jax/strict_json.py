"""Strict parsing of untrusted JSON: no extensions, no duplicate keys."""

import json
import math
from typing import Any

from agentrl_jax.errors import BadValue


def parse_object(content: bytes, where: str) -> dict[str, Any]:
    """Parses UTF-8 text that holds one JSON object, or raises a `ValueError` that begins with `where`."""
    data = parse(content, where)
    if not isinstance(data, dict):
        raise BadValue.at(
            where, f"holds a JSON {type(data).__name__}; expected an object with keys", type(data).__name__
        )
    return data


def parse(content: bytes, where: str, *, advice: str = "; download or write it again") -> Any:
    """Parses UTF-8 text that holds any JSON value, or raises a `ValueError` that begins with `where`.

    `advice` ends the message; that of files does not fit what a server has sent.
    """
    try:
        return json.loads(content.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadValue.at(where, f"not valid JSON ({str(error)[:200]}){advice}") from error


def finite(value: Any) -> Any:
    """The value, or None for a number that is not finite or beyond the range of floats."""
    try:
        return None if isinstance(value, int | float) and not math.isfinite(value) else value
    except OverflowError:
        return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise BadValue(f"key {key[:100]!r} is given twice", key="key", value=key[:100])
        made[key] = value
    return made


def _no_constant(name: str) -> None:
    raise BadValue(f"{name} is no JSON number", key=name)
