"""Compares learning rules: the same starts, levels, episodes and gradient steps, several seeds in one program.

Seed s of a variant is the run that `agentrl train` does with the variant's configuration and that seed, up to rounding.
Shapes: `S` seeds, `n` held-out levels.
"""

import json
import os
from pathlib import Path

from rich.console import Console

from agentrl_jax.config import decode
from agentrl_jax.config.comparison import Comparison, check_same
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.io import FULL, atomic_write, try_writing
from agentrl_jax.studies.variants import Record, Variants


def compare(
    comparison: Comparison, out: str | os.PathLike[str], *, only: tuple[str, ...], console: Console
) -> dict[str, Record]:
    """Runs every variant that has no file in the folder yet, and returns the records of all of them.

    A variant's file is written when the variant ends: a stopped comparison resumes at the variant that was interrupted.

    Args:
        comparison: the variants.
        out: folder of the results, one file VARIANT.json per variant.
        only: variants to run; all if empty.
        console: where progress is shown.

    Returns:
        Records of the finished variants, in the order of the comparison file.

    Raises:
        UserError: the folder cannot be written, one of its variants was run with another configuration, or an entry of
            the comparison is invalid.
    """
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try_writing(folder)  # checked now, since a variant is written only at its end
    except OSError as error:
        if error.errno in FULL:
            raise
        raise UserError(
            f"{folder}: cannot be written ({error.strerror}), expected a folder for the variants; give another one "
            "with --out"
        ) from error
    unknown = [name for name in only if name not in comparison.variants]
    if unknown:
        raise UserError(
            f"--only names {unknown[0]!r}, which is no variant; the variants are {', '.join(comparison.variants)}"
        )
    records = {name: _held(folder, name, comparison) for name in comparison.variants}
    missing = [name for name, record in records.items() if record is None and (not only or name in only)]
    if missing:
        with refusals():
            variants = Variants(comparison, console)
        for name in missing:
            played = records[name] = variants.play(name)
            with atomic_write(folder / f"{name}.json") as file:
                json.dump(played, file)
    return {name: record for name, record in records.items() if record is not None}


def _held(folder: Path, name: str, comparison: Comparison) -> Record | None:
    file = folder / f"{name}.json"
    if not file.exists():
        return None
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        held, seeds = decode(record["config"], source="config"), record["seeds"]
    except (UserError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{file}: is no file of a variant of this version ({error}); delete it, or give another folder with --out"
        ) from error
    check_same(name, held, comparison.variants[name])
    if len(seeds) != comparison.seeds:
        raise UserError(
            f"{file}: has {len(seeds)} seeds instead of {comparison.seeds}; delete it, or give another --out"
        )
    return record
