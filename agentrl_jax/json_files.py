"""Rows of JSON files: lines of `.jsonl`, read when they are asked for, and arrays of `.json`, which are kept."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from agentrl_jax.errors import UserError, refusals
from agentrl_jax.strict_json import parse

MAX_LINE = 16 * 2**20
"""Bytes of a line at most."""
MAX_ARRAY = 2**30
"""Bytes of a file with an array at most; lines have no such limit."""

_BOM = b"\xef\xbb\xbf"
_ADVICE = "; correct it, or leave it out"
Row = TypeVar("Row")


class JsonLines(Sequence[Row]):
    """The rows of a file with one JSON value a line, each made by `make` from the value and its `file:line`.

    Lines end at LF only, so that U+2028 is text. Empty lines are none, and a byte order mark before a line is no part
    of it. All rows are made once at the start, for the errors of `make`, and again when they are asked for.

    Raises:
        UserError: a line is no JSON, too long or cut off, or `make` refuses it; later, if the file has changed.
    """

    def __init__(self, path: str | os.PathLike[str], make: Callable[[Any, str], Row], seen: Callable[[Row], None]):
        """`seen` gets every row at the start."""
        self.path, self._make = Path(path), make
        self._places: list[tuple[int, int, int]] = []
        self._stamp = self._stamped()
        for number, offset, line in self._lines():
            seen(self._row(line, number))
            self._places.append((number, offset, len(line)))

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        number, offset, length = self._places[index]
        if self._stamped() != self._stamp:
            raise UserError.at(
                self.path, "has changed since it was opened; start again, with files that stay as they are"
            )
        with open(self.path, "rb") as file:
            file.seek(offset)
            return self._row(file.read(length), number)

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """The number, the offset and the bytes of each line that is not empty."""
        offset, number = 0, 0
        with open(self.path, "rb") as file:
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise UserError.at(f"{self.path}:{number}", f"has more than {MAX_LINE} bytes; split the row")
                if line.strip() and line.strip() != _BOM:
                    yield number, offset, line
                offset += len(line)

    def _row(self, line: bytes, number: int) -> Row:
        where = f"{self.path}:{number}"
        cut = "" if line.endswith(b"\n") else ", and has no end: the file may be cut off"
        with refusals():
            value = parse(line.removeprefix(_BOM), where, advice=cut + _ADVICE)
        return self._make(value, where)

    def _stamped(self) -> tuple[int, int, int]:
        stat = os.stat(self.path)
        return stat.st_ino, stat.st_size, stat.st_mtime_ns


def array_rows(path: str | os.PathLike[str], make: Callable[[Any, str], Row]) -> list[Row]:
    """The rows of a file with one JSON array, each made by `make` from the value and `file: row N`, from 1.

    Raises:
        UserError: the file is too large or no JSON array, or `make` refuses a row.
    """
    size = os.stat(path).st_size
    if size > MAX_ARRAY:
        raise UserError.at(
            path, f"has {size} bytes, expected at most {MAX_ARRAY}; write one row a line, as .jsonl", size
        )
    with refusals():
        rows = parse(Path(path).read_bytes().removeprefix(_BOM), str(path), advice=_ADVICE)
    if not isinstance(rows, list):
        raise UserError.at(path, f"holds a JSON {type(rows).__name__}; expected an array, or rows as lines of .jsonl")
    return [make(row, f"{path}: row {number}") for number, row in enumerate(rows, start=1)]
