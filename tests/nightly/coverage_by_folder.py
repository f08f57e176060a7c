"""Prints the coverage of lines and of branches by folder, from the file that `coverage json` writes.

python tests/nightly/coverage_by_folder.py coverage.json
"""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mutant_sources import FOLDERS, folder_of


def by_folder(files: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """By folder of `mutants.FOLDERS`, the shares of the lines and of the branches that ran, in per cent."""
    counts = {folder: Counter[str]() for folder in FOLDERS}
    for file, found in files.items():
        if file.startswith(tuple(f"{folder}/" for folder in FOLDERS)):
            counts[folder_of(file)].update({name: x for name, x in found["summary"].items() if isinstance(x, int)})

    def share(of: Counter[str], covered: str, number: str) -> float:
        return 100 * of[covered] / max(of[number], 1)

    kinds = ("covered_lines", "num_statements"), ("covered_branches", "num_branches")
    return {folder: tuple(share(of, *kind) for kind in kinds) for folder, of in counts.items()}


if __name__ == "__main__":
    print(f"{'folder':22}{'lines':>8}{'branches':>10}")
    for name, (lines, branches) in by_folder(json.loads(Path(sys.argv[1]).read_text())["files"]).items():
        print(f"{name:22}{lines:7.1f}%{branches:9.1f}%")
