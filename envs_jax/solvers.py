"""Reference solutions of the environments of this package; each function is a `reference.Solver`."""

from typing import Any

import numpy as np

from envs_jax import frozen_lake
from envs_jax.frozen_lake import oracle as frozen_lake_oracle
from envs_jax.packs import Levels
from envs_jax.reference import Reference, reference_of_plans
from envs_jax.sokoban import oracle as sokoban_oracle


def solve_bandit(env: Any, params: Any, levels: Levels, starts: Any, limit: int) -> Reference:
    """Pulls the high arm of the two on display."""
    # The high arm of a pair has the odd id.
    high = starts.shown[np.arange(len(levels)), np.argmax(starts.shown % 2, axis=1)]
    ones = np.ones(len(levels), np.int32)
    return Reference(high.astype(np.int16)[:, None, None], ones, ones.astype(bool))


def solve_frozen_lake(env: Any, params: Any, levels: Levels, starts: Any, limit: int) -> Reference:
    """Follows a shortest safe path; on slippery ice, the optimal policy that sees the board before every action."""
    plans = reference_of_plans([frozen_lake_oracle.plan(level) for level in levels], np.ones(len(levels), bool))
    rate = float(params.success_rate)
    if rate == 1:
        return plans
    return plans._replace(
        actions=frozen_lake_oracle.best_actions(levels, limit, rate),
        situation=frozen_lake.cell_of_player,
        success=frozen_lake_oracle.optimal_success(levels, limit, rate),
    )


def solve_sokoban(env: Any, params: Any, levels: Levels, starts: Any, limit: int) -> Reference:
    """Follows a shortest plan."""
    return reference_of_plans([sokoban_oracle.solve(level) for level in levels], np.ones(len(levels), bool))
