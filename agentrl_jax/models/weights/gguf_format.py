"""The container of a GGUF file: metadata, and where its tensors are.

Written out here, and not left to `gguf.GGUFReader`, because that one takes every count in the file for true: a hostile
or torn file makes it loop or allocate without bounds. Here each count is held against the bytes that are left.
"""

import dataclasses
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.models.weights.errors import WeightsError
from agentrl_jax.models.weights.strict import shown

KINDS = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
"""Kinds of tensors that are supported, by number: name, numbers in a block, bytes of a block."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LARGEST_ARRAY = 2**22
"""Most elements of an array: sixteen times the largest vocabulary there is."""


@dataclasses.dataclass(frozen=True)
class TensorPlace:
    """Where a tensor lies.

    Attributes:
        shape: as NumPy counts it, the fastest axis last.
        kind: key of `KINDS`.
        start: first byte in the file.
        size: number of bytes.
    """

    shape: tuple[int, ...]
    kind: int
    start: int
    size: int


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """An open file.

    Attributes:
        path: the file.
        metadata: its settings by name.
        tensors: its tensors by name.
        data: u8[bytes] the file itself, mapped into memory.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorPlace]
    data: np.ndarray


def open_gguf(path: Path) -> GgufFile:
    """Reads everything but the tensors' values.

    Raises:
        WeightsError: the file cannot be read, is torn, or is of a form that is not supported.
    """
    try:
        if not path.is_file():
            raise WeightsError(f"{path}: no such file")
        data = np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    cursor = _Cursor(path, data)
    if cursor.take(4) != b"GGUF":
        raise WeightsError(f"{path}: does not start with GGUF; expected a GGUF file")
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise WeightsError(f"{path}: GGUF version {version}; expected 2 or 3 in little-endian order; convert it again")
    num_tensors, num_fields = cursor.count(24), cursor.count(13)
    metadata = cursor.table(num_fields, "setting", lambda: cursor.value(cursor.scalar("I")))
    infos = cursor.table(num_tensors, "tensor", cursor.tensor_info)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= 2**20 or alignment & (alignment - 1):
        raise WeightsError(f"{path}: general.alignment is {shown(alignment)}; expected a power of two")
    start = -(-cursor.position // alignment) * alignment
    tensors = {name: _place(path, name, info, start, alignment, data.size) for name, info in infos.items()}
    end = start
    for name, place in sorted(tensors.items(), key=lambda item: item[1].start):
        if place.start < end:
            raise WeightsError(f"{path}: tensor {shown(name)} overlaps another one; download it again")
        end = place.start + place.size
    return GgufFile(path, metadata, tensors, data)


def _place(
    path: Path, name: str, info: tuple[tuple[int, ...], int, int], start: int, alignment: int, total: int
) -> TensorPlace:
    shape, kind, offset = info
    if kind not in KINDS:
        known = ", ".join(known for known, _, _ in KINDS.values())
        raise WeightsError(
            f"{path}: tensor {shown(name)} is of kind {kind}; expected {known}; use another quantisation"
        )
    _, block, block_bytes = KINDS[kind]
    count = math.prod(shape)
    if shape[-1] % block:
        raise WeightsError(f"{path}: tensor {shown(name)} has rows of {shape[-1]}; expected a multiple of {block}")
    size = count // block * block_bytes
    if offset % alignment or start + offset + size > total:
        raise WeightsError(f"{path}: tensor {shown(name)} reaches beyond the end of the file; download it again")
    return TensorPlace(shape, kind, start + offset, size)


class _Cursor:
    """Reads forward through a file and never past its end."""

    def __init__(self, path: Path, data: np.ndarray):
        self.path, self.position = path, 0
        self._data: memoryview = memoryview(data.data)

    @property
    def left(self) -> int:
        return len(self._data) - self.position

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise WeightsError(f"{self.path}: ends in the middle of its header; download it again")
        self.position += size
        return bytes(self._data[self.position - size : self.position])

    def scalar(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def count(self, least: int) -> int:
        """A number of things of at least `least` bytes each, which must fit into the rest of the file."""
        number = self.scalar("Q")
        if number * least > self.left:
            raise WeightsError(f"{self.path}: announces {number} parts, for which it is too short; download it again")
        return number

    def string(self) -> str:
        try:
            return self.take(self.count(1)).decode()
        except UnicodeDecodeError as error:
            raise WeightsError(f"{self.path}: holds text that is not UTF-8; download it again") from error

    def table(self, number: int, what: str, value: Callable[[], Any]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for _ in range(number):
            name = self.string()
            if name in made:
                raise WeightsError(f"{self.path}: the {what} {shown(name)} stands twice; download it again")
            made[name] = value()
        return made

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        inner = self.scalar("I") if kind == _ARRAY else -1
        if inner != _STRING and inner not in _SCALARS:
            raise WeightsError(f"{self.path}: a setting of type {kind} ({inner}); expected numbers or text")
        number = self.count(8 if inner == _STRING else struct.calcsize(f"<{_SCALARS[inner]}"))
        if number > _LARGEST_ARRAY:
            raise WeightsError(f"{self.path}: a setting of {number} elements; expected at most {_LARGEST_ARRAY}")
        if inner == _STRING:
            return [self.string() for _ in range(number)]
        code = f"<{number}{_SCALARS[inner]}"
        return list(struct.unpack(code, self.take(struct.calcsize(code))))

    def tensor_info(self) -> tuple[tuple[int, ...], int, int]:
        axes = self.scalar("I")
        if not 1 <= axes <= 4:
            raise WeightsError(f"{self.path}: a tensor of {axes} axes; expected 1 to 4; download it again")
        shape = tuple(self.scalar("Q") for _ in range(axes))[::-1]
        if 0 in shape:
            raise WeightsError(f"{self.path}: a tensor of shape {list(shape)}; expected no empty axis")
        return shape, self.scalar("I"), self.scalar("Q")
