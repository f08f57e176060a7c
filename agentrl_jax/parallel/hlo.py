"""Finds the operations inside the loops of a compiled program, from its HLO text."""

import dataclasses
import math
import re
from collections.abc import Iterable

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
HOST = ("infeed", "outfeed", "send", "recv")
MOVE = "move"
"""An asynchronous copy between two memories of a device; its data is what a kernel reads or writes."""

_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "c64": 8}
_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPERATION = re.compile(r"^(\(.*?\)|\S+) ([a-z][\w\-]*)\(")
_CALLED = re.compile(r"(condition|body|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_LAYOUT = re.compile(r"\][^\[\]{}]*\{([^}]*)\}")
_SPACE = re.compile(r"S\(\d+\)")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Operation:
    """One instruction."""

    kind: str
    """Its name in HLO, without `-start`, or `MOVE`."""
    size: int
    """Bytes of its result; for an asynchronous one, of the largest array of its result."""
    depth: int
    """Number of `while` loops around it."""


def operations(text: str, opcodes: Iterable[str]) -> list[Operation]:
    """All operations with the given opcodes in a module, with the number of loops around them.

    Instructions inside a fusion are not counted: they are steps of one kernel, and their results are not stored. A
    computation that is called from several places is counted once, at its largest depth. Of an asynchronous operation
    the start is counted, the end is not. `text` is `compiled.as_text()`.
    """
    bodies, entry = _computations(text)
    depth = {entry: 0}
    unvisited = [entry]
    while unvisited:
        name = unvisited.pop()
        for line in bodies[name]:
            for inner, deeper in _called(line):
                if inner in bodies and depth[name] + deeper > depth.get(inner, -1):
                    depth[inner] = depth[name] + deeper
                    unvisited.append(inner)
    wanted = set(opcodes)
    return [
        Operation(kind, _size(*matched.groups()), depth[name])
        for name, lines in bodies.items()
        for line in lines
        if name in depth and (matched := _OPERATION.match(line)) and (kind := _kind(*matched.groups())) in wanted
    ]


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Right-hand sides of the instructions of every computation, and the name of the entry computation."""
    bodies: dict[str, list[str]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = bodies.setdefault(header.group(1), [])
            entry = header.group(1) if line.startswith("ENTRY") else entry
        elif current is not None and (instruction := _INSTRUCTION.match(line.strip())):
            current.append(instruction.group(2))
    return bodies, entry


def _called(line: str) -> list[tuple[str, int]]:
    """Computations that an instruction calls, each with 1 for a loop's body or condition, else 0; none for a fusion."""
    if " fusion(" in line:
        return []
    called = [(name, int(role in ("body", "condition"))) for role, name in _CALLED.findall(line)]
    for names in _BRANCHES.findall(line):
        called += [(name.strip().lstrip("%"), 0) for name in names.split(",")]
    return called


def _kind(type_text: str, name: str) -> str:
    spaces = {tuple(_SPACE.findall(layout)) for layout in _LAYOUT.findall(type_text)[:2]}
    return MOVE if name == "copy-start" and len(spaces) > 1 else name.removesuffix("-start")


def _size(type_text: str, name: str) -> int:
    sizes = [
        _item_size(dtype) * math.prod(int(n) for n in dims.split(",") if n) for dtype, dims in _ARRAY.findall(type_text)
    ]
    # The result of a start holds the operands too; that of a combined collective is a tuple of its results.
    return max(sizes, default=0) if name.endswith("-start") else sum(sizes)


def _item_size(dtype: str) -> int:
    bits = re.search(r"\d+$", dtype)
    return _BYTES.get(dtype) or max(1, int(bits.group()) // 8 if bits else 1)
