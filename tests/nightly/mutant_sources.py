"""One-line faults: those of a list, and those that cosmic-ray makes."""

import ast
import collections
import dataclasses
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDERS = ("envs_jax", *(f"agentrl_jax/{name}" for name in ["algos", "learner", "rollout", "models", "text", "config"]))

SWAPS = (
    *("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Mul_Add", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul"),
    *("BitAnd_BitOr", "BitOr_BitAnd", "LShift_RShift", "RShift_LShift"),
)
"""Replacements of binary operators that keep the type of the result; cosmic-ray has others, which only raise."""

_OPERATIONS = ("arith_expr", "term", "expr", "and_expr", "shift_expr", "power")
"""parso's names of binary operations."""


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A file of the product with one fault."""

    file: str
    line: int
    kind: str
    changed: str  # the first line that differs, after the change
    code: str  # the whole file with the fault

    @property
    def folder(self) -> str:
        return folder_of(self.file)


def folder_of(file: str) -> str:
    """The entry of `FOLDERS` that a file is in."""
    return next(folder for folder in FOLDERS if file.startswith(f"{folder}/"))


def planted(file: str, before: str, after: str, kind: str) -> Mutant:
    pairs = enumerate(zip(before.splitlines(), after.splitlines()), 1)
    line, changed = next((number, new) for number, (old, new) in pairs if old != new)
    return Mutant(file, line, kind, changed.strip(), after)


def written(entries: Iterable[Mapping[str, str]], root: Path = ROOT) -> list[Mutant]:
    """The faults of a list; ValueError if a text does not occur exactly once in its file, or stays the same."""
    found = []
    for entry in entries:
        before = (root / entry["file"]).read_text()
        count, what = before.count(entry["text"]), f"{entry['file']}: {entry['text']!r}"
        if count != 1:
            raise ValueError(f"{what} occurs {count} times; expected a text that occurs once")
        if entry["replacement"] == entry["text"]:
            raise ValueError(f"{what} is replaced by itself; expected a fault")
        after = before.replace(entry["text"], entry["replacement"])
        found.append(planted(entry["file"], before, after, entry["kind"]))
    return found


def generated(folder: str, seed: int, root: Path = ROOT) -> Iterator[Mutant]:
    """Faults of a folder that cosmic-ray makes, in random order, at most one at each place."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.operators.provider import OperatorProvider

    provider = OperatorProvider()
    operators = {name: provider[name]() for name in provider if _is_used(name)}
    places = collections.defaultdict(list)
    for file in sorted(str(path.relative_to(root)) for path in (root / folder).rglob("*.py")):
        nodes = list(ast_nodes(get_ast((root / file).read_text())))
        for name, operator in operators.items():
            for number, node in enumerate(nodes):
                if not _is_arithmetic(node) or _is_of_decorator(node):
                    continue
                for index, (start, _) in enumerate(operator.mutation_positions(node)):
                    places[file, start].append((name, number, index))
    draw = random.Random(f"{seed} {folder}")
    order = sorted(places)
    draw.shuffle(order)
    for file, start in order:
        name, number, index = draw.choice(places[file, start])
        before = (root / file).read_text()
        tree = get_ast(before)
        # Operators change a node or return another one, which then takes its place.
        node = list(ast_nodes(tree))[number]
        siblings = node.parent.children
        siblings[siblings.index(node)] = operators[name].mutate(node, index)
        after = tree.get_code()
        if _runs(before) != _runs(after):
            yield planted(file, before, after, name)


def _is_arithmetic(node: Any) -> bool:
    """Whether a node computes: no message, no star of a signature or call, no sign or number of `-1`."""
    if node.type == "operator" and node.value in ("*", "**", "-", "+") and node.parent.type not in _OPERATIONS:
        return False
    while node is not None:
        if node.type == "fstring" or (node.type == "factor" and node.children[-1].type == "number"):
            return False
        node = node.parent
    return True


def _is_of_decorator(node: Any) -> bool:
    """Whether a node is an argument of a decorator: a class that could be assigned to behaves alike."""
    while node is not None and node.type != "decorator":
        node = node.parent
    return node is not None


def _is_used(name: str) -> bool:
    if name.startswith("ReplaceBinaryOperator_"):
        return name.partition("_")[2] in SWAPS
    if name.startswith("ReplaceComparisonOperator_"):
        return ("Is" in name.partition("_")[2].partition("_")[0]) == ("_Is" in name)
    return name in (
        *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
        *("NumberReplacer", "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub"),
        *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ReplaceUnaryOperator_Delete_Invert"),
    )


def _runs(code: str) -> str:
    """What a file says apart from layout and annotations; empty if it is no Python."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        for name in {"annotation", "returns"} & {*node._fields}:
            setattr(node, name, None)
    return ast.dump(tree)
