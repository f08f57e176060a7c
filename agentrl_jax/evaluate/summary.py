"""The summary of a run at its end: success before and after training, and the machine."""

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from agentrl_jax.evaluate.lines import rows
from agentrl_jax.evaluate.statistics import paired_interval, success_interval
from envs_jax.budget import Baselines

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "gymnax", "numpy", "tokenizers")

Outcomes = Mapping[str, Sequence[bool]]
"""Success on each held-out level, under "sampled" and "greedy"."""


def success_tables(
    start: Outcomes,
    trained: Outcomes,
    baselines: Baselines | None,
    *,
    imitated: bool,
) -> dict[str, Any]:
    """Success rates with intervals, and what RL added to them.

    Args:
        start: outcomes before RL, on the same levels as `trained`.
        trained: outcomes after RL.
        baselines: random, optimal and null play on these levels; None if unknown.
        imitated: whether RL started from imitation.
    """
    success, greedy = (
        {"imitation": success_interval(start[how]), "trained": success_interval(trained[how])}
        for how in ("sampled", "greedy")
    )
    if baselines is not None:
        for table in (success, greedy):
            table |= {"random": success_interval(baselines.random), "optimal": success_interval(baselines.optimal)}
            table |= {} if baselines.null is None else {"null": success_interval(baselines.null)}
    best = max(start, key=lambda how: np.mean(start[how]))
    source = "imitation" if imitated else "the start"
    paired = {
        f"RL, sampled, over {source}, sampled": paired_interval(trained["sampled"], start["sampled"]),
        f"RL, sampled, over the better of {source} ({best})": paired_interval(trained["sampled"], start[best]),
    }
    tables = {"success": success, "success_greedy": greedy, "paired": paired, "imitated": imitated}
    return tables | ({} if baselines is None else {"optimal_is": baselines.optimal_is})


def tables_by_category(
    kinds: Sequence[str],
    start: Outcomes,
    trained: Outcomes,
    baselines: Baselines | None,
    *,
    imitated: bool,
) -> dict[str, dict[str, Any]]:
    """`success_tables` for each category of level; same arguments, with the category of every level in `kinds`."""
    tables = {}
    for kind in sorted(set(kinds)):
        mine = np.array([each == kind for each in kinds])
        before, after = ({how: np.asarray(x)[mine].tolist() for how, x in each.items()} for each in (start, trained))
        known = None if baselines is None else rows(baselines, mine)
        tables[kind] = success_tables(before, after, known, imitated=imitated)
    return tables


def machine() -> dict[str, Any]:
    """Kind of device, and versions of the packages that the numbers depend on."""
    versions = {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
    return {"device": jax.devices()[0].device_kind, "versions": versions}
