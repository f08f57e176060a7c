"""Slow checks of what the quick tests of the same name check."""

import jax
import numpy as np
from babyai_games import PARAMS, RED_BALLS, SMALL, listed, reset, small_items, walk

from envs_jax import registry

LIMIT = 20
BOARDS = small_items(RED_BALLS[:24])
SPEC = registry.spec("BabyAI-GoToRedBall")


def test_what_is_imitated_solves_the_level_within_the_limit():
    first = SPEC.random_actions(SMALL, PARAMS, BOARDS, 1, jax.random.key(1))
    assert 4 < (first < 0).sum() < 20
    assert all(
        SMALL.actions[row[0]] in listed(SMALL, reset(SMALL, board)) for row, board in zip(first, BOARDS) if row >= 0
    )
    found = SPEC.exploring_after(SMALL, PARAMS, BOARDS, LIMIT, first)
    wide = np.pad(first, ((0, 0), (0, LIMIT)), constant_values=-1)  # as wide as above, for the same program
    shortest = SPEC.plan_after(SMALL, PARAMS, BOARDS, LIMIT, wide)
    longer = 0
    for board, taken, plan, direct in zip(BOARDS, first, found, shortest, strict=True):
        assert (plan is None) == (direct is None)
        if plan is None:  # the first action was the only one needed
            continue
        taken = taken[taken >= 0]
        assert len(direct) <= len(plan) <= LIMIT - len(taken)
        longer += len(plan) > len(direct)
        (state, _) = walk(SMALL, board, [*taken, *plan])[-1]
        assert SMALL.success(state, PARAMS)
    assert longer > 0
