"""Plants one-line faults in a copy of the product, and asks whether a quick test notices: `make test-mutants`.

    python tests/nightly/mutants.py                            # the faults of mutants.yaml: every one must be killed
    python tests/nightly/mutants.py --generated 150 --seed 0   # faults that cosmic-ray makes: most must be noticed
    python tests/nightly/mutants.py --folder algos --only 3    # fault 3 of agentrl_jax/algos

Each fault is planted alone, and the unit, property and golden tests of its folder run, those nearest to the file first,
until one notices it. It is killed by an assertion, raised if tests failed with other exceptions, and an error if they
could not be collected or their process died. A written fault needs an assertion. Many generated ones only break shapes
or types, where none is reached, so that any exception will do; those that cannot be collected are replaced by others.
"""

import argparse
import collections
import concurrent.futures
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

sys.path.append(str(Path(__file__).parents[1] / "helpers"))
import xla_settings  # noqa: F401  # isort: skip  (processes that import JAX must find its settings)

from mutant_runs import Copies
from mutant_sources import FOLDERS, Mutant, generated, written

LIST = Path(__file__).with_name("mutants.yaml")
OUTCOMES = ("killed", "raised", "error", "timeout", "survived")
MOST_RAISED = 10
"""Tests that may fail without an assertion before a written fault counts as raised."""
ENOUGH = 0.85
"""Share of the generated faults that must be noticed."""


def chosen(options: argparse.Namespace) -> dict[str, Iterator[Mutant]]:
    """By folder, the faults to plant."""
    folders = [folder for folder in FOLDERS if not options.folder or folder.split("/")[-1] == options.folder]
    if options.generated:
        return {folder: generated(folder, options.seed) for folder in folders}
    every = written(yaml.safe_load(LIST.read_text()))
    return {folder: iter([mutant for mutant in every if mutant.folder == folder]) for folder in folders}


def play(
    copies: Copies, pool: concurrent.futures.Executor, mutants: Iterator[Mutant], number: int | None
) -> list[tuple[Mutant, tuple[str, str, float]]]:
    """The outcomes of `number` faults of a folder, None for all; of generated ones, errors make room for others."""
    found: list[tuple[Mutant, tuple[str, str, float]]] = []
    while number is None or number > 0:
        batch = list(mutants) if number is None else [mutant for mutant, _ in zip(mutants, range(number))]
        for mutant, result in zip(batch, pool.map(copies.outcome, batch)):
            found.append((mutant, result))
            outcome, decided_by, seconds = result
            place = f"{mutant.file}:{mutant.line} {mutant.kind}: {mutant.changed}"
            print(f"{outcome:9} {seconds:4.0f} s  {place}", *filter(None, [decided_by]), sep=f"\n{'':18}", flush=True)
        errors = sum(result[0] == "error" for _, result in found[-len(batch) :]) if batch else 0
        number = errors if number is not None and batch else 0
    return found


def table(rows: Mapping[str, Sequence[tuple[str, str, float]]]) -> str:
    """Counts of the outcomes by folder."""
    lines = [f"{'folder':22}" + "".join(f"{name:>10}" for name in (*OUTCOMES, "seconds"))]
    totals = {**rows, "all": [result for results in rows.values() for result in results]}
    for folder, results in totals.items():
        counts = collections.Counter(outcome for outcome, _, _ in results)
        seconds = sum(result[2] for result in results)
        lines.append(f"{folder:22}" + "".join(f"{counts[name]:10}" for name in OUTCOMES) + f"{seconds:10.0f}")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Plants the faults that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", choices=[x.split("/")[-1] for x in FOLDERS], help="one folder; without it all")
    parser.add_argument("--only", type=int, help="number of one fault of the folder, from 0")
    parser.add_argument("--generated", type=int, default=0, help="number of generated faults instead of written ones")
    parser.add_argument("--seed", type=int, default=0, help="of the generated faults")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds of the tests of one fault")
    parser.add_argument("--nearest", type=int, help="run only so many test files, the nearest")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without a fault first")
    options = parser.parse_args(words)
    folders = chosen(options)
    each = -(-options.generated // len(folders)) if options.generated else None
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home, concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        most_raised = 1 if options.generated else MOST_RAISED
        copies = Copies(Path(home), options.workers, options.timeout, options.nearest, most_raised)
        checked = () if options.unchecked else folders
        for folder, (outcome, decided_by, seconds) in zip(checked, pool.map(copies.check, checked)):
            if outcome != "survived":
                raise SystemExit(f"{folder}: the tests fail without a fault: {outcome} {decided_by}")
            print(f"{'passes':9} {seconds:4.0f} s  {folder} without a fault", flush=True)
        for folder, mutants in folders.items():
            some = mutants if options.only is None else iter(list(mutants)[options.only : options.only + 1])
            results[folder] = [result for _, result in play(copies, pool, some, each)]
    print(table(results))
    every = [outcome for found in results.values() for outcome, _, _ in found]
    if not options.generated:
        return int(any(outcome != "killed" for outcome in every))
    counted = [outcome for outcome in every if outcome != "error"]
    share = sum(outcome in ("killed", "raised") for outcome in counted) / max(len(counted), 1)
    print(f"of {len(counted)}, killed or raised: {share:.0%}; needed: {ENOUGH:.0%}")
    return int(share < ENOUGH)


if __name__ == "__main__":
    sys.exit(main())
