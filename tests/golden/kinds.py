"""Counts the files of the product that ask for the kind of an environment, and those that name Wordle.

    python tests/golden/kinds.py

A question is a look at a kind's class, flag or list of names; a file that defines one of them does not count as asking.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLASSES = {"CompiledEnv", "HostEnv", "HostTask", "Task", "PythonTask", "ServedTask"}
FLAGS = {"served", "python"}
NAMES = {"TEXT_SERVICES", "is_path", "registered"}


def questions(tree: ast.AST) -> Iterator[str]:
    """Yields what asks for a kind: `isinstance` with a class, a flag that is read, a list of names that is used."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            yield from {x.id for x in ast.walk(node.args[1]) if isinstance(x, ast.Name)} & CLASSES
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in FLAGS:
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in NAMES:
            yield node.id


def main() -> None:
    """Prints both lists."""
    files = sorted(path for room in ("agentrl_jax", "envs_jax") for path in (ROOT / room).rglob("*.py"))
    asking = {path: sorted(set(questions(ast.parse(path.read_text())))) for path in files}
    asking = {path: found for path, found in asking.items() if found}
    wordle = [path for path in files if "wordle" in path.read_text().lower()]
    print(f"{len(asking)} files ask for a kind")
    for path, found in asking.items():
        print(f"  {path.relative_to(ROOT)}: {', '.join(found)}")
    print(f"{len(wordle)} files name Wordle", *(path.relative_to(ROOT) for path in wordle), sep="\n  ")


if __name__ == "__main__":
    main()
