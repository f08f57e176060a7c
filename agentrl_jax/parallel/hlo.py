"""Finds the operations inside the loops of a compiled program, from its HLO text."""

import dataclasses
import re
from collections.abc import Iterable

from agentrl_jax.parallel.hlo_text import Instruction, parse

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
HOST = ("infeed", "outfeed", "send", "recv")
MOVE = "move"
"""An asynchronous copy between two memories of a device; its data is what a kernel reads or writes."""

_CALLED = re.compile(r"(condition|body|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


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
    computations, entry = parse(text)
    depth = {entry: 0}
    unvisited = [entry]
    while unvisited:
        name = unvisited.pop()
        for instruction in computations[name].values():
            for inner, deeper in called(instruction):
                if inner in computations and depth[name] + deeper > depth.get(inner, -1):
                    depth[inner] = depth[name] + deeper
                    unvisited.append(inner)
    wanted = set(opcodes)
    return [
        Operation(kind, _size(instruction), depth[name])
        for name, computation in computations.items()
        for instruction in computation.values()
        if name in depth and (kind := _kind(instruction)) in wanted
    ]


def called(instruction: Instruction) -> list[tuple[str, int]]:
    """Computations that an instruction calls, each with 1 for a loop's body or condition, else 0; none for a fusion."""
    if instruction.opcode == "fusion":
        return []
    found = [(name, int(role in ("body", "condition"))) for role, name in _CALLED.findall(instruction.attributes)]
    for names in _BRANCHES.findall(instruction.attributes):
        found += [(name.strip().lstrip("%"), 0) for name in names.split(",")]
    return found


def _kind(instruction: Instruction) -> str:
    spaces = {x.space for x in instruction.arrays[:2]}
    is_move = instruction.opcode == "copy-start" and len(spaces) > 1
    return MOVE if is_move else instruction.opcode.removesuffix("-start")


def _size(instruction: Instruction) -> int:
    # The result of a start holds the operands too; that of a combined collective is a tuple of its results.
    if instruction.opcode.endswith("-start"):
        return max((x.size for x in instruction.arrays), default=0)
    return instruction.size
