"""Success of random and of optimal play on given levels, and plans to imitate."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int8, Int32

from envs_jax.babyai.env import BabyAI
from envs_jax.babyai.policies import play, random_policy
from envs_jax.babyai.search import shortest_plans
from envs_jax.budget import Baselines, Budget

PLAYS = 8
"""Random episodes of each level."""

MAX_NODES = 2000
"""Situations of a level after which the search for a plan is given up."""

SEARCH = f"search of {MAX_NODES} situations"


def oracle(env: BabyAI, params: Any, levels: Int8[np.ndarray, "N H W"], budget: Budget) -> Baselines:
    """Estimates random play, which takes listed actions, and finds plans; a level whose search is given up has none.

    So optimal play is at least what is returned.
    """
    keys = jax.random.split(jax.random.key(0), PLAYS * len(levels))
    repeated = jnp.asarray(np.repeat(levels, PLAYS, axis=0))
    success = np.asarray(play(env, params, repeated, keys, random_policy, budget.reachable)[0])
    plans = shortest_plans(env, params, levels, budget.reachable, max_nodes=MAX_NODES)
    solved = np.array([found.actions is not None for found in plans], np.float64)
    return Baselines(success.reshape(len(levels), PLAYS).mean(axis=1), solved, SEARCH)


def plan(
    env: BabyAI, params: Any, levels: Int8[np.ndarray, "N H W"], limit: int
) -> list[Int32[np.ndarray, " L"] | None]:
    """Returns plans of at most `limit` actions; None where the search finds none in time."""
    found = shortest_plans(env, params, levels, limit, max_nodes=MAX_NODES)
    return [None if plan.actions is None else np.array(plan.actions, np.int32) for plan in found]
