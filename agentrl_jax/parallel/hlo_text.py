"""Parses the HLO text of a compiled program."""

import dataclasses
import functools
import math
import re

_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "c64": 8}
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\](?:\{([^}]*)\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_NAME = re.compile(r"%([\w.\-]+)")
_PARENTHESES = re.compile(r"[()]")


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of the result of an instruction."""

    size: int
    """Bytes, without the padding of a layout."""
    space: int
    """Its memory: 0 is the large one of the device, others are on the chip or the host's."""


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction of a computation."""

    name: str
    opcode: str
    type_text: str
    """The type of its result."""
    operands: tuple[str, ...]
    """Names of instructions in the same computation."""
    literal: str
    """What stands in the parentheses: for a parameter its number."""
    attributes: str
    """What follows the parentheses."""
    is_root: bool

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """Those of its result, a tuple's in their order."""
        return tuple(_array(*found) for found in _ARRAY.findall(self.type_text))

    @property
    def size(self) -> int:
        """Bytes of all arrays of its result."""
        return sum(x.size for x in self.arrays)


Computation = dict[str, Instruction]
"""The instructions by name, operands before what reads them."""


def parse(text: str) -> tuple[dict[str, Computation], str]:
    """All computations of a module by name, and the name of the entry computation.

    `text` is `compiled.as_text()`. Lines that are no instructions are skipped.
    """
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = computations.setdefault(header.group(2), {})
            entry = header.group(2) if header.group(1) else entry
        elif current is not None and (found := _INSTRUCTION.match(line.strip())):
            root, name, type_text, opcode, rest = found.groups()
            end = _closing(rest)
            operands = tuple(_NAME.findall(rest[:end]))
            current[name] = Instruction(name, opcode, type_text, operands, rest[:end], rest[end:], bool(root))
    return computations, entry


def _closing(text: str) -> int:
    """Where the parenthesis is closed that was opened before the text."""
    depth = 1
    for found in _PARENTHESES.finditer(text):
        depth += 1 if found.group() == "(" else -1
        if depth == 0:
            return found.start()
    return len(text)


def _array(dtype: str, dims: str, layout: str) -> Array:
    space = _SPACE.search(layout)
    numbers = math.prod(int(n) for n in dims.split(",") if n)
    return Array(_item_size(dtype) * numbers, int(space.group(1)) if space else 0)


def _item_size(dtype: str) -> int:
    bits = re.search(r"\d+$", dtype)
    return _BYTES.get(dtype) or max(1, int(bits.group()) // 8 if bits else 1)
