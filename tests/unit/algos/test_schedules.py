import math

import pytest

from agentrl_jax.algos.schedules import AdaptiveHorizonState, stepwise
from agentrl_jax.config import algo

RULE = algo.AdaptiveHorizon(turns=(2, 4, 8), every=3, min_gain=0.02, min_spread=0.3)


def test_a_stage_lasts_as_long_as_it_says():
    found = [stepwise(t - 1, (10, 20, 30), 100) for t in (1, 100, 101, 200, 201, 10_000)]
    assert found == [10, 10, 20, 20, 30, 30]
    assert stepwise(12, (5,), 1) == 5


def played(success, spread=lambda t: 0.4, iterations=30):
    state, stages = AdaptiveHorizonState(), []
    for t in range(iterations):
        stages.append(state.stage)
        state = state.after(RULE, success(t), spread(t))
    return stages


def test_a_rising_success_keeps_the_horizon_and_a_level_one_moves_it():
    assert set(played(lambda t: 0.02 * t)) == {0}
    assert played(lambda t: 0.5)[:13] == [0] * 6 + [1] * 6 + [2]
    assert max(played(lambda t: 0.5, iterations=100)) == 2
    # Although success rises, where the spread is used up.
    assert max(played(lambda t: 0.02 * t, lambda t: 0.4 if t < 8 else 0.05)) >= 1


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_measurement_that_is_no_number_changes_nothing(broken):
    state = AdaptiveHorizonState().after(RULE, 0.5, 0.4)
    assert state.after(RULE, broken, 0.4) == state
    assert state.after(RULE, 0.5, broken) == state
