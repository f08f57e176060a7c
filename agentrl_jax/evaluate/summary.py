"""The summary of a run at its end: success before and after training, and the machine."""

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from agentrl_jax.config.load import installed_version
from agentrl_jax.evaluate.baselines import mean_turns, select, success_intervals
from agentrl_jax.evaluate.results import gap_closed
from agentrl_jax.evaluate.statistics import paired_interval, success_interval
from envs_jax.budget import Baselines

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "gymnax", "numpy", "tokenizers")

Outcomes = Mapping[str, Sequence[bool]]
"""Success on each held-out level, under "sampled" and "greedy"."""


def success_tables(
    start: Outcomes, trained: Outcomes, baselines: Baselines | None, *, before: Sequence[str]
) -> dict[str, Any]:
    """Success rates with intervals, what RL added to them, and the share of the gap that sampled success closes.

    `start` and `trained` are outcomes before and after RL on the same levels, which `baselines` is about, too.
    `before` has the names of the stages before RL.
    """
    success, greedy = (
        {"imitation": success_interval(start[how]), "trained": success_interval(trained[how])}
        for how in ("sampled", "greedy")
    )
    if baselines is not None:
        for table in (success, greedy):
            table |= success_intervals(baselines)
    best = max(start, key=lambda how: np.mean(start[how]))
    source = ", ".join(before) or "the start"
    paired = {
        f"RL, sampled, over {source}, sampled": paired_interval(trained["sampled"], start["sampled"]),
        f"RL, sampled, over the better of {source} ({best})": paired_interval(trained["sampled"], start[best]),
    }
    tables = {
        "success": success,
        "success_greedy": greedy,
        "paired": paired,
        "imitated": "imitation" in before,
        "stages": [*before],
    }
    if baselines is None:
        return tables
    share = gap_closed(success["trained"]["mean"], success["random"]["mean"], success["optimal"]["mean"])
    return tables | {
        "optimal_is": baselines.optimal_is,
        "baseline_turns": mean_turns(baselines),
        "gap_closed": share,
    }


def no_tables(*, before: Sequence[str]) -> dict[str, Any]:
    """The entries of the summary of a run without tasks, whose stages are `before`: no levels, no success."""
    empty: dict[str, Any] = {name: {} for name in ("success", "success_greedy", "paired", "by_category", "levels")}
    unknown = dict.fromkeys(("mean_turns", "mean_tokens", "held_out", "seen_levels", "seen_midway"))
    return {**empty, **unknown, "imitated": False, "stages": [*before]}


def tables_by_category(
    categories: Sequence[str], start: Outcomes, trained: Outcomes, baselines: Baselines | None, *, before: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """`success_tables` for each category of level; `categories` has that of every level."""
    tables = {}
    for name in sorted(set(categories)):
        levels = np.array([category == name for category in categories])
        earlier, later = ({how: np.asarray(x)[levels].tolist() for how, x in each.items()} for each in (start, trained))
        known = None if baselines is None else select(baselines, levels)
        tables[name] = success_tables(earlier, later, known, before=before)
    return tables


def machine() -> dict[str, Any]:
    """Kind of device, and versions of the packages that the numbers depend on."""
    versions = {"agentrl_jax": installed_version(), "python": platform.python_version()}
    versions |= {name: version(name) for name in _PACKAGES}
    return {"device": jax.devices()[0].device_kind, "versions": versions}
