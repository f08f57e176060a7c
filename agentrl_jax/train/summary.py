"""What a run says of itself at its end: success before and after, on what it ran."""

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from agentrl_jax.evaluate.statistics import paired_interval, success_interval

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "gymnax", "numpy", "tokenizers")

Outcomes = Mapping[str, Sequence[bool]]
"""Success on each held-out level, "sampled" and "greedy"."""


def success_tables(
    start: Outcomes,
    trained: Outcomes,
    baselines: Sequence[tuple[np.ndarray, np.ndarray] | None],
    *,
    imitated: bool,
) -> dict[str, Any]:
    """Success with its intervals, and what reinforcement learning added to it.

    Args:
        start: before learning, on the same levels as `trained`.
        trained: after it.
        baselines: of each task, exact success of random and of optimal play on these levels; None where it is unknown.
        imitated: learning started from imitation.
    """
    success, greedy = (
        {"imitation": success_interval(start[how]), "trained": success_interval(trained[how])}
        for how in ("sampled", "greedy")
    )
    if all(baseline is not None for baseline in baselines):
        random, optimal = (np.concatenate([b[i] for b in baselines if b is not None]) for i in (0, 1))
        for table in (success, greedy):
            table |= {"random": success_interval(random), "optimal": success_interval(optimal)}
    best = max(start, key=lambda how: np.mean(start[how]))
    source = "imitation" if imitated else "the start"
    paired = {
        f"RL, sampled, over {source}, sampled": paired_interval(trained["sampled"], start["sampled"]),
        f"RL, sampled, over the better of {source} ({best})": paired_interval(trained["sampled"], start[best]),
    }
    return {"success": success, "success_greedy": greedy, "paired": paired, "imitated": imitated}


def tables_by_category(
    kinds: Sequence[str],
    start: Outcomes,
    trained: Outcomes,
    baselines: Sequence[tuple[np.ndarray, np.ndarray] | None],
    *,
    imitated: bool,
) -> dict[str, dict[str, Any]]:
    """`success_tables` of each kind of level alone; arguments as there, `kinds` names that of every level."""
    every = None
    if all(pair is not None for pair in baselines):
        every = tuple(np.concatenate([pair[i] for pair in baselines if pair is not None]) for i in (0, 1))
    tables = {}
    for kind in sorted(set(kinds)):
        mine = np.array([each == kind for each in kinds])
        before, after = ({how: np.asarray(x)[mine].tolist() for how, x in each.items()} for each in (start, trained))
        known = None if every is None else (every[0][mine], every[1][mine])
        tables[kind] = success_tables(before, after, [known], imitated=imitated)
    return tables


def machine() -> dict[str, Any]:
    """Kind of device, and versions of what the numbers depend on."""
    versions = {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
    return {"device": jax.devices()[0].device_kind, "versions": versions}
