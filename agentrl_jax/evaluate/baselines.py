"""Baselines for an agent's success: null play, and baselines of several tasks or of some levels."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int8

from agentrl_jax.evaluate.statistics import Clusters, any_of, success_interval
from agentrl_jax.setup.jit_once import jit_once
from envs_jax import registry
from envs_jax.budget import Baselines, Budget
from envs_jax.environment import TextEnvironment


def null_success(env: TextEnvironment, params: Any, levels: Int8[np.ndarray, "N H W"]) -> Float[np.ndarray, " N"]:
    """Success of an agent whose responses can never be parsed, which is that of the initial state.

    `levels` is i8[N, 0, 0] if the environment has none: then N initial states are sampled.
    """

    def success(start):
        reset = env.reset_to_level if levels.size else env.reset_env
        return env.success(reset(start, params)[1], params)

    starts = levels if levels.size else jax.random.split(jax.random.key(0), len(levels))
    of_levels = jit_once(jax.vmap(success), ("null_success", env, params, bool(levels.size)))
    return np.asarray(of_levels(starts), np.float64)


def level_baselines(
    name: str, env: TextEnvironment, params: Any, levels: Int8[np.ndarray, "N H W"], budget: Budget
) -> Baselines | None:
    """Random, null and optimal play on levels of the environment called `name`; None if it has no oracle."""
    known = registry.level_baselines(name, env, params, levels, budget)
    # Null play carries out no action, so that only the limit of turns ends it.
    turns = {"null": np.full(len(levels), float(budget.turns))}
    return known and known._replace(null=null_success(env, params, levels), turns={**known.turns, **turns})


def success_intervals(baselines: Baselines, clusters: Clusters = None) -> dict[str, Any]:
    """Confidence intervals of the success of random, optimal and, if known, null play."""
    return {name: success_interval(of_levels, clusters=clusters) for name, of_levels in level_rates(baselines).items()}


def level_rates(baselines: Baselines) -> dict[str, list[float]]:
    """Success of random, optimal and, if known, null play on each level, by name."""
    success = {"random": baselines.random, "optimal": baselines.optimal, "null": baselines.null}
    return {name: of_levels.tolist() for name, of_levels in success.items() if of_levels is not None}


def mean_turns(baselines: Baselines) -> dict[str, float]:
    """Mean number of turns of an episode of random, optimal and null play by name, as far as known."""
    return {name: float(of_levels.mean()) for name, of_levels in baselines.turns.items()}


def concatenate(parts: Sequence[Baselines | None]) -> Baselines | None:
    """Concatenates the baselines of several tasks; None if those of a task are unknown."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    null = [part.null for part in known if part.null is not None]
    common = set.intersection(*(set(part.turns) for part in known))
    return Baselines(
        np.concatenate([part.random for part in known]),
        np.concatenate([part.optimal for part in known]),
        ", ".join(sorted({part.optimal_is for part in known})),
        np.concatenate(null) if len(null) == len(known) else None,
        {name: np.concatenate([part.turns[name] for part in known]) for name in sorted(common)},
    )


def select(baselines: Baselines, levels: Bool[np.ndarray, " N"]) -> Baselines:
    """The baselines of some of N levels."""
    random, optimal, optimal_is, null, turns = baselines
    of_levels = {name: values[levels] for name, values in turns.items()}
    return Baselines(random[levels], optimal[levels], optimal_is, None if null is None else null[levels], of_levels)


def within(baselines: Baselines, plays: int) -> Baselines:
    """Success in at least one of several independent plays of each level, without their turns."""
    random, optimal, optimal_is, null, _ = baselines
    return Baselines(
        any_of(random, plays), any_of(optimal, plays), optimal_is, None if null is None else any_of(null, plays)
    )
