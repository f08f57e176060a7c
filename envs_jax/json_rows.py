"""Rows of a file with one JSON object a line, read strictly; for files that users give to environments."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from envs_jax.errors import BadValue

MAX_LINE = 16 * 2**20
"""Bytes of a line at most."""

_BOM = b"\xef\xbb\xbf"
_QUOTED = 120
Row = TypeVar("Row")


def json_rows(path: str | os.PathLike[str], make: Callable[[dict[str, Any], str], Row], what: str) -> list[Row]:
    """The rows of a file `.jsonl`, each made by `make` from an object and its `file:line`; `what` they are, in words.

    Lines end at LF only, so that U+2028 is text. Empty lines are none, and a byte order mark before a line is no part
    of it.

    Raises:
        BadValue: the file is missing or has no row; or a line is too long, is no strict JSON (no repeated keys, no NaN,
            no text that is not Unicode), is no object, or `make` refuses it. The message begins with file and line.
    """
    file, rows = Path(path), list[Row]()
    if not file.is_file():
        raise BadValue(f"{file}: no such file; give one with a {what} a line, as .jsonl", file)
    with open(file, "rb") as lines:
        number = 0
        while line := lines.readline(MAX_LINE + 1):
            number += 1
            where = f"{file}:{number}"
            if len(line) > MAX_LINE:
                raise BadValue(f"{where}: has more than {MAX_LINE} bytes; split the row", where)
            if line.strip() and line.strip() != _BOM:
                rows.append(make(_object(line, where), where))
    if not rows:
        raise BadValue(f"{file}: has no {what}s; expected at least one a line", file)
    return rows


def refuse(where: str, what: str, value: Any = None) -> BadValue:
    """The error of a row: `file:line: what`."""
    return BadValue(f"{where}: {what}", where, value)


def quoted(value: object) -> str:
    """A value in quotes, in one line, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]} ..."


def check_text(where: str, key: str, text: Any, expected: str = "a string") -> None:
    """Refuses what is no string of Unicode text without NUL."""
    if not isinstance(text, str):
        raise refuse(where, f"{key} is a JSON {type(text).__name__}; expected {expected}", text)
    flaw = "a NUL character" if "\0" in text else "half of a surrogate pair" if _has_surrogate(text) else ""
    if flaw:
        raise refuse(where, f"{key} has {flaw}, {quoted(text)}; write it as Unicode text", text)


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _object(line: bytes, where: str) -> dict[str, Any]:
    cut = "" if line.endswith(b"\n") else ", and has no end: the file may be cut off"
    try:
        value = json.loads(line.removeprefix(_BOM).decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        message = f"{where}: not valid JSON ({str(error)[:200]}){cut}; correct it, or leave it out"
        raise BadValue(message, where) from error
    if not isinstance(value, dict):
        raise refuse(where, f"holds a JSON {type(value).__name__}; expected an object with keys")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise BadValue("a key is given twice", "key")
    return made


def _no_constant(name: str) -> None:
    raise BadValue(f"{name} is no JSON number", name)
