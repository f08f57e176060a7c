"""The entries of BabyAI in the registry."""

from typing import Any

import numpy as np

from envs_jax.babyai import NAMES, TAGS, baselines, colors, scene
from envs_jax.packs import Levels
from envs_jax.reference import Reference, reference_of_plans
from envs_jax.registry import Spec


def solve(env: Any, params: Any, levels: Levels, starts: Any, limit: int) -> Reference:
    """Follows a plan with the fewest actions, where the search finds one; a `reference.Solver`."""
    plans = baselines.plan(env, params, levels, limit)
    return reference_of_plans(plans, np.zeros(len(levels), bool))


_DESCRIPTIONS = {
    "BabyAI": "the eighteen levels of AgentGym-RL: rooms, doors and keys, missions in words",
    **{f"BabyAI-{name}": f"level {number} of BabyAI" for number, name in NAMES.items()},
}
_SUCCESS_RULE = "the mission is fulfilled and has not failed; with mode=upstream, the sum of the rewards is above 0"
SPECS = {
    name: Spec(
        factory,
        _DESCRIPTIONS[name],
        success_rule=_SUCCESS_RULE,
        max_actions=20,
        oracle=baselines.oracle,
        plan=baselines.plan,
        plan_after=baselines.plan_after,
        exploring_after=baselines.exploring_after,
        random_actions=baselines.random_first,
        symmetry=colors.permute,
        scene=scene.scene,
        solve=solve,
        floors=baselines.floors(name),
        checked_seeds=1_000,
        solved_levels=64,
    )
    for name, factory in TAGS.items()
}
