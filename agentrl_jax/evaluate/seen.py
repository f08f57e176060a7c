"""Counts by content how many levels of an evaluation a run has learned from: from how many its episodes started.

A run writes the levels of every batch to levels.jsonl: `step`, `stage` (that of `LEARNED`, or test) and `levels`, the
ids of the distinct levels; of conversations the hash of goal and first observation. The count therefore does not rely
on the rule that separates the splits, but tests it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int8

from agentrl_jax.rollout.envs.batched_env import Task
from agentrl_jax.rollout.envs.level_splits import TaskLevels
from agentrl_jax.rollout.trajectory import hexadecimal
from agentrl_jax.runs.records import SUPERVISED, read_rows
from envs_jax.splits import state_hashes

LEARNED = (*SUPERVISED, "rl", "start")
"""Stages whose levels are used to update parameters; start: by the run whose policy this one started from."""


def learned_levels(
    rows: Iterable[Mapping[str, Any]], metrics: Iterable[Mapping[str, Any]], last: int
) -> set[str] | None:
    """Ids of the levels of all tasks that a run has learned from, up to the step `last`.

    `rows` are those of levels.jsonl, `metrics` those of metrics.jsonl. None if a step has no row in metrics.jsonl, or
    its batch none in levels.jsonl, or the levels of the run that it started from are not known, since the count would
    then be too small.
    """
    learned = _learned(rows, last)
    if not _comparable(learned):
        return None
    done = [row for row in metrics if row["step"] <= last]
    known = {row["step"] if row["stage"] == "rl" else row["stage"] for row in learned}
    needed = {row["step"] if row["stage"] == "rl" else row["stage"] for row in done}
    if not needed <= known or not set(range(1, last + 1)) <= {row["step"] for row in done}:
        return None
    return {level for row in learned for level in row["levels"]}


def _learned(rows: Iterable[Mapping[str, Any]], last: int) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["stage"] in LEARNED and row["step"] <= last]


def _comparable(learned: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the levels of all rows can be compared with others; those of data without tasks cannot."""
    return all(row.get("known", True) for row in learned)


def learned_from(run: Path, step: int, report: Callable[[str], None]) -> set[str] | None:
    """The levels that a checkpoint has learned from, see `learned_levels`; gaps in the records are reported."""
    levels, metrics = (read_rows(run / name) for name in ("levels.jsonl", "metrics.jsonl"))
    learned = learned_levels([row for _, row in levels.rows], [row for _, row in metrics.rows], step)
    bad = [
        f"{len(found.bad)} row{'s' * (len(found.bad) > 1)} of {name} cannot be read (the first is line {found.bad[0]})"
        for name, found in (("levels.jsonl", levels), ("metrics.jsonl", metrics))
        if found.bad
    ]
    if not bad and not _comparable(_learned([row for _, row in levels.rows], step)):
        report(f"{run}: learned from data or a run whose levels are not known (seen_levels is null)")
    elif learned is None:
        gap = " and ".join(bad) or f"metrics.jsonl or levels.jsonl lacks rows of the {step} steps up to the checkpoint"
        report(
            f"{run}: {gap}, so how many levels were learned from is not known (seen_levels is null); restore the "
            "whole file to have that count"
        )
    elif bad:
        report(f"{run}: {' and '.join(bad)}; no result needs them")
    return learned


def seen_levels(
    learned: set[str] | None,
    levels: Sequence[str],
    task_levels: TaskLevels,
    task: Any,
    boards: Int8[np.ndarray, "n H W"],
) -> dict[str, Any]:
    """What is known of the n levels of one task's evaluation.

    `learned` has the ids of the levels that were learned from, None if unknown; `levels` has the ids of those that were
    played, and `boards` is i8[n, 0, 0] if they are not boards.

    Returns:
        `held_out`: true, or why levels are not held out; `levels`: number played; `distinct_levels`: number of distinct
        ones; `seen_levels`: how many of those played were learned from, None if unknown; `seen_images`: how many were
        learned from as an image, if the environment knows the images of a level (`level_images`).
    """
    found = {
        "held_out": task_levels.undivided_reason or True,
        "levels": len(levels),
        "distinct_levels": len(set(levels)),
        "seen_levels": None if learned is None else sum(level in learned for level in levels),
    }
    if learned is None or not task.has_boards:
        return found
    try:
        images = [task.env.level_images(board) for board in boards]
    except NotImplementedError:
        return found
    return found | {"seen_images": _seen_images(learned, task, images)}


def board_ids(task: Task, boards: Int8[np.ndarray, "n H W"]) -> list[str]:
    """The ids of levels, as `trajectory.level_ids` returns them for episodes on these."""
    return hexadecimal(state_hashes(task.env, task.env_params, boards))


def _seen_images(learned: set[str], task: Task, images: Sequence[Sequence[np.ndarray]]) -> int:
    """Number of levels of a task, each given with its images, that were learned from in any form."""
    known = np.isin(board_ids(task, np.stack([image for of_level in images for image in of_level])), list(learned))
    parts = np.split(known, np.cumsum([len(of_level) for of_level in images])[:-1])
    return sum(bool(part.any()) for part in parts)
