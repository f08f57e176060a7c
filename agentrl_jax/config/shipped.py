"""The experiments that come with the package, by the names of their files: experiments/ of a checkout or of a wheel."""

import itertools
import os
import shutil
import textwrap
from pathlib import Path
from typing import Any

_FOLDER = "experiments"
_ROOT = Path(__file__).resolve().parents[1]


def folder() -> Path:
    """Where the experiments are: beside the package in a checkout, in it where a wheel was installed."""
    return next(
        (place for place in (_ROOT / _FOLDER, _ROOT.parent / _FOLDER) if (place / "demo.yaml").is_file()), _ROOT
    )


def names() -> dict[str, Path]:
    """The files by name, without those of comparisons."""
    found = {file.stem: file for file in sorted(folder().glob("*.yaml"))}
    return {name: file for name, file in found.items() if "\nrun:" not in file.read_text(encoding="utf-8")}


def find(path: str | os.PathLike[str]) -> Path | None:
    """The file of an experiment that is given by its name; None for anything else."""
    name = os.fspath(path)
    file = folder() / f"{name}.yaml"
    return file if name.isidentifier() and file.is_file() and not os.path.exists(name) else None


def with_own_files(node: Any) -> Any:
    """The content of such a file, with the paths of the files that come with it: they begin with experiments/."""
    if isinstance(node, dict):
        return {key: with_own_files(value) for key, value in node.items()}
    if isinstance(node, list):
        return [with_own_files(value) for value in node]
    own = isinstance(node, str) and node.startswith(f"{_FOLDER}/")
    return str(folder().parent / node) if own else node


def listing() -> str:
    """A line for each: its name, and the first sentence of the comment at its beginning."""
    lines, width = [], max(shutil.get_terminal_size().columns - 28, 40)
    for name, file in names().items():
        first = itertools.takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
        sentence = " ".join(line.lstrip("# ") for line in first).partition(". ")[0]
        lines.append(f"{name:28}{textwrap.shorten(sentence, width, placeholder=' ...')}")
    return "\n".join(lines)
