"""Compares learning rules: the same starts, levels, episodes and gradient steps, several seeds in one program.

Seed s of a variant is the run that `agentrl train` does with the variant's configuration and that seed, up to rounding.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from agentrl_jax.config import decode
from agentrl_jax.config.comparison import Comparison, check_same
from agentrl_jax.config.defaults import with_defaults
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.io import FULL, atomic_write, try_writing
from agentrl_jax.setup.own_rules import with_own_rules
from agentrl_jax.studies.comparison_report import page
from agentrl_jax.studies.variants import Record, Variants
from agentrl_jax.terminal import Terminal


def compare(
    comparison: Comparison, out: str | os.PathLike[str], *, only: tuple[str, ...], console: Terminal
) -> dict[str, Record]:
    """Runs the variants in `only`, or all, that have no file in the folder yet; returns the records of finished ones.

    A variant's file VARIANT.json is written into the folder `out` when the variant ends: a stopped comparison resumes
    at the variant that was interrupted.

    Raises:
        UserError: the folder cannot be written, one of its variants was run with another configuration or evaluated on
            other levels, or an entry of the comparison is invalid.
    """
    with refusals():
        found = {name: with_defaults(with_own_rules(config)) for name, config in comparison.variants.items()}
    comparison, folder = comparison._replace(variants=found), Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try_writing(folder)  # checked now, since a variant is written only at its end
    except OSError as error:
        if error.errno in FULL:
            raise
        raise UserError.at(
            folder, f"cannot be written ({error.strerror}), expected a writable folder; change --out"
        ) from error
    unknown = [name for name in only if name not in comparison.variants]
    if unknown:
        raise UserError(
            f"--only names {unknown[0]!r}, expected one of {', '.join(comparison.variants)}",
            key="--only",
            value=unknown[0],
        )
    records = {name: _read(folder, name, comparison) for name in comparison.variants}
    missing = [name for name, record in records.items() if record is None and (not only or name in only)]
    stored = {name: record for name, record in records.items() if record is not None}
    for chunk in comparison.chunks:
        known = {name: record for name, record in stored.items() if name in chunk.variants}
        asked = [name for name in missing if name in chunk.variants]
        if asked:
            with refusals():
                variants = Variants(chunk, console)
            _check_levels(folder, known, variants.test_levels)
            for name, record in known.items():
                if record["start"] != variants.start:
                    line = f"{name}: is stored with other starts, so that it is not paired with what is run now"
                    console.print(line)
            for name in asked:
                records[name] = variants.run(name)
                with atomic_write(folder / f"{name}.json") as file:
                    json.dump(records[name], file)
        elif known:
            _check_levels(folder, known, next(iter(known.values()))["test_levels"])
    return {name: record for name, record in records.items() if record is not None}


def _check_levels(folder: Path, stored: Mapping[str, Record], expected: str) -> None:
    """Refuses records of other held-out levels than those whose digest is `expected`."""
    for name, record in stored.items():
        if record["test_levels"] != expected:
            raise UserError(
                f"{folder / name}.json: was evaluated on other held-out levels; delete it, or give another --out",
                key=f"{folder / name}.json",
            )


def _read(folder: Path, name: str, comparison: Comparison) -> Record | None:
    file = folder / f"{name}.json"
    if not file.exists():
        return None
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        stored, seeds, _ = decode(record["config"], source="config"), record["seeds"], record["test_levels"]
        page({name: record}, (), name, "")  # what a report cannot read is found out before anything is run
    except (UserError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError.at(
            file, f"is no file of a variant of this version ({error}); delete it, or give another folder with --out"
        ) from error
    check_same(name, stored, comparison.variants[name])
    if len(seeds) != comparison.seeds:
        raise UserError.at(
            file, f"has {len(seeds)} seeds, expected {comparison.seeds}; delete it, or give another --out", len(seeds)
        )
    return record
