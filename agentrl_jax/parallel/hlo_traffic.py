"""Counts the bytes that a compiled program reads from the memory of a device and writes to it.

The compiler's count, `bytes accessed`, holds accesses to small memories on the chip to be like any other, and counts an
array again when it is moved there. On a TPU that is about four times the traffic to the large memory for a decode step,
and ten times for a prefill. The HLO text says in which memory each array is.
"""

from collections.abc import Iterable, Iterator

from agentrl_jax.parallel.hlo import called
from agentrl_jax.parallel.hlo_text import Array, Computation, Instruction, parse

_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier"),
    *("partition-id", "replica-id", "domain"),
}
"""Instructions that touch no data."""
_CALLS = {"while", "call", "conditional"}
_SLICES = {"slice", "dynamic-slice", "gather"}
"""Of their first operand, they read no more than they return."""
_UPDATED = {"dynamic-update-slice": 1, "scatter": 2}
"""They write into their first operand, in its place; the number is that of the operand that is written."""


def memory_bytes(text: str) -> int:
    """Bytes read from the large memory of a device (HBM) and written to it, by one call of a program.

    `text` is `compiled.as_text()`. Every instruction reads its operands and writes its result once, so steps of a
    fusion count nothing, and a slice or an update in place counts what it touches. The body of a loop counts once, of
    a condition the largest branch. Sizes are without the padding of layouts.
    """
    computations, entry = parse(text)
    return _Traffic(computations).of(entry)


class _Traffic:
    def __init__(self, computations: dict[str, Computation]):
        self.computations = computations

    def of(self, name: str) -> int:
        computation = self.computations[name]
        return sum(self._of_instruction(one, computation) for one in computation.values())

    def _of_instruction(self, one: Instruction, computation: Computation) -> int:
        if one.opcode in _CALLS:
            return max((self.of(name) for name, _ in called(one) if name in self.computations), default=0)
        if one.opcode in _FREE or one.opcode.endswith("-done"):
            return 0
        opcode = one.opcode.removesuffix("-start")
        if opcode in _SLICES:
            # Started early, its result comes after its operands.
            result = one.arrays[1 if one.opcode.endswith("-start") else 0]
            return _large((result, Array(result.size, computation[one.operands[0]].arrays[0].space)))
        if opcode in _UPDATED:
            written = computation[one.operands[_UPDATED[opcode]]].arrays[0]
            return _large((written, Array(written.size, one.arrays[0].space)))
        if opcode != one.opcode and opcode != "all-reduce":
            return _large(one.arrays)  # operands and results
        if opcode == "fusion":
            read = sum(self._read(one, number, computation[name]) for number, name in enumerate(one.operands))
        else:
            read = sum(_large(computation[name].arrays) for name in dict.fromkeys(one.operands))
        return read + self._written(one)

    def _read(self, fusion: Instruction, number: int, operand: Instruction) -> int:
        """Bytes of its operand that a fusion reads."""
        if len(operand.arrays) != 1 or operand.arrays[0].space:
            return _large(operand.arrays)
        return min(operand.size, self._used(fusion, number, operand.size))

    def _used(self, fusion: Instruction, number: int, size: int) -> int:
        body = self.computations[_body(fusion)]
        parameter = next(x for x in body.values() if x.opcode == "parameter" and x.literal == str(number))
        return sum(self._uses(parameter, body, size))

    def _uses(self, value: Instruction, body: Computation, size: int) -> Iterator[int]:
        """Bytes that each use of a value inside a fusion reads; `size` if all of it."""
        if value.is_root:
            yield size
        for user in body.values():
            numbers = [n for n, name in enumerate(user.operands) if name == value.name]
            if not numbers:
                continue
            if self._is_bitcast(user):
                yield from self._uses(user, body, size)
            elif user.opcode == "fusion":
                yield from (self._used(user, number, size) for number in numbers)
            elif user.opcode in _SLICES and numbers == [0]:
                yield user.size
            elif user.opcode not in _UPDATED or numbers != [0]:
                yield size

    def _is_bitcast(self, one: Instruction) -> bool:
        """Whether it is a bitcast, or a fusion of nothing else."""
        if one.opcode != "fusion":
            return one.opcode == "bitcast"
        return all(x.opcode in ("parameter", "bitcast") for x in self.computations[_body(one)].values())

    def _written(self, one: Instruction) -> int:
        if one.opcode != "fusion":
            return _large(one.arrays)
        sizes = list(self._results(self.computations[_body(one)]))
        if len(sizes) != len(one.arrays):
            return _large(one.arrays)
        return _large(Array(size, array.space) for size, array in zip(sizes, one.arrays))

    def _results(self, body: Computation) -> Iterator[int]:
        """Bytes that a fusion writes of each of its results."""
        root = next(x for x in body.values() if x.is_root)
        for one in [body[name] for name in root.operands] if root.opcode == "tuple" else [root]:
            while one.opcode == "bitcast":
                one = body[one.operands[0]]
            if one.opcode == "fusion":
                yield from self._results(self.computations[_body(one)])
            elif one.opcode in _UPDATED:
                yield body[one.operands[_UPDATED[one.opcode]]].size
            else:
                yield one.size


def _body(fusion: Instruction) -> str:
    return fusion.attributes.partition("calls=")[2].split(",")[0].split()[0].lstrip("%")


def _large(arrays: Iterable[Array]) -> int:
    return sum(x.size for x in arrays if x.space == 0)
