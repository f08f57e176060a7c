"""Arrays in the form that the page decodes: named columns behind a JSON header, compressed with gzip.

Layout before compression: u32 length of the header, the header as JSON, zeros up to a multiple of 4, then the columns
one after the other, each padded to a multiple of 4. All numbers are little-endian. The header's `columns` lists name,
type and number of elements of each. Columns of type u2 are stored as all low bytes and then all high bytes, which gzip
compresses better.
"""

import gzip
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from agentrl_jax.errors import BadValue

_TYPES = {"u1": np.uint8, "u2": np.uint16, "i4": np.int32, "u4": np.uint32, "f4": np.float32}
_LEVEL = 6
"""Of gzip; 9 takes twice the time and saves 1 %."""


def pack(header: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> bytes:
    """Packs flat arrays of the dtypes u8, u16, i32, u32, f32 and bool, and a header that can be written as JSON.

    Raises:
        ValueError: a column has another dtype, or the header has the key `columns`.
    """
    if "columns" in header:
        raise BadValue("the header has the key 'columns', which lists the columns; name it otherwise", key="columns")
    entries, parts = [], []
    for name, column in columns.items():
        kind = "u1" if column.dtype == bool else column.dtype.newbyteorder("<").str[1:]
        if kind not in _TYPES:
            raise BadValue(
                f"column {name} is {column.dtype}, expected one of {', '.join(_TYPES)} or bool",
                key="column",
                value=name,
            )
        data = np.ascontiguousarray(column.ravel(), dtype=np.dtype(_TYPES[kind]).newbyteorder("<")).tobytes()
        if kind == "u2":
            data = data[0::2] + data[1::2]
        entries.append([name, kind, int(column.size)])
        parts.append(data + b"\0" * (-len(data) % 4))
    text = json.dumps({**header, "columns": entries}, allow_nan=False).encode()
    start = len(text).to_bytes(4, "little") + text
    return gzip.compress(b"".join([start, b"\0" * (-len(start) % 4), *parts]), _LEVEL, mtime=0)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns header and columns of what `pack` returned; the page has the same in TypeScript."""
    data = gzip.decompress(data)
    size = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + size])
    at, columns = 4 + size + -(4 + size) % 4, {}
    for name, kind, count in header.pop("columns"):
        length = count * int(kind[1])
        part = data[at : at + length]
        if kind == "u2":
            part = bytes(np.frombuffer(part, np.uint8).reshape(2, count).T.ravel())
        columns[name] = np.frombuffer(part, np.dtype(_TYPES[kind]).newbyteorder("<"))
        at += length + -length % 4
    return header, columns


def smallest(values: np.ndarray) -> np.ndarray:
    """Integers that are not negative as u8, u16 or i32, whichever is the smallest that holds them."""
    most = int(values.max(initial=0))
    return values.astype(np.uint8 if most < 2**8 else np.uint16 if most < 2**16 else np.int32)


class Precision(NamedTuple):
    """How exactly `quantize` stores numbers."""

    levels: int
    """Most distinct values, from 4 to 65,536."""
    scale: float
    """Positive. Below it the absolute error is bounded, above it the relative one."""
    share: float
    """A number x is off by at most `share * (abs(x) + scale)`, if all are from `-most` to `most`."""
    most: float


def quantize(values: np.ndarray, precision: Precision) -> tuple[np.ndarray, np.ndarray]:
    """Stores floats as indices in a table of at most `precision.levels` values.

    With few distinct values the table holds them exactly. Otherwise it holds values that are equidistant in
    asinh(x / scale) from the smallest to the largest, 0 and NaN. Every value is replaced by the nearest.

    Args:
        values: f32[N]; infinities become NaN.
        precision: how exactly.

    Returns:
        Table f32[K] and indices u8[N] or u16[N].
    """
    levels, scale = precision.levels, precision.scale
    finite = np.isfinite(values)
    known = np.unique(values[finite])
    if known.size >= levels:
        low, high = np.arcsinh(float(known[0]) / scale), np.arcsinh(float(known[-1]) / scale)
        spaced = (scale * np.sinh(np.linspace(low, high, levels - 2))).astype(np.float32)
        known = np.unique(np.append(spaced, np.float32(0)))  # exact, because 0 often means that there is nothing
    table = np.append(known, np.float32(np.nan)).astype(np.float32)
    indices = np.full(values.shape, known.size, np.int64)
    between = (known[1:] + known[:-1]) / 2
    indices[finite] = np.searchsorted(between, values[finite])
    return table, indices.astype(np.uint8 if table.size <= 2**8 else np.uint16)
