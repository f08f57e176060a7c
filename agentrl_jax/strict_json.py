"""JSON that others wrote: strictly JSON, no key twice."""

import json
from typing import Any


def parse_object(content: bytes, where: str) -> dict[str, Any]:
    """The object that UTF-8 text holds.

    Args:
        content: the text.
        where: the file, for messages.

    Raises:
        ValueError: it is no strict JSON, or no object.
    """
    data = parse(content, where)
    if not isinstance(data, dict):
        raise ValueError(f"{where}: holds a JSON {type(data).__name__}; expected an object with keys")
    return data


def parse(content: bytes, where: str) -> Any:
    """What UTF-8 text holds; arguments and errors as `parse_object`."""
    try:
        return json.loads(content.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not valid JSON ({str(error)[:200]}); download or write it again") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"key {key[:100]!r} stands twice")
        made[key] = value
    return made


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
