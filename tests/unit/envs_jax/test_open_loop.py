"""The optimum of an agent that commits to several moves per turn, against every policy on small boards."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax import registry
from envs_jax.budget import CLOSED_LOOP, EXACT, Budget
from envs_jax.frozen_lake import open_loop
from envs_jax.frozen_lake.open_loop import committed_success
from envs_jax.frozen_lake.oracle import optimal_success, random_success
from envs_jax.frozen_lake.text import GOAL, HOLE, START

TINY = np.array(
    [[[3, 0, 0], [0, 1, 0], [0, 0, 2]], [[0, 0, 3], [1, 0, 0], [2, 0, 1]], [[3, 1, 2], [0, 0, 0], [0, 1, 0]]], np.int8
)
RATE = 0.6
ENV, PARAMS = registry.make("FrozenLake")
LEVEL_BASELINES = functools.partial(registry.level_baselines, "FrozenLake", ENV)


@pytest.fixture(scope="module")
def levels():
    return registry.sample_levels(ENV, PARAMS, jax.random.split(jax.random.key(1), 64))


def brute_force(level, budget, rate):
    """Success of the best policy, by trying every sequence of every length in every situation."""
    steps = [(0, -1), (1, 0), (0, 1), (-1, 0)]

    def outcomes(cell, sequence):
        chances = {cell: 1.0}
        for action in sequence:
            new: dict = {}
            for at, p in chances.items():
                for turn, q in ((0, rate), (1, (1 - rate) / 2), (3, (1 - rate) / 2)):
                    step = (0, 0) if level[at] in (HOLE, GOAL) else steps[(action + turn) % 4]
                    to = tuple(min(max(x + d, 0), 2) for x, d in zip(at, step))
                    new[to] = new.get(to, 0.0) + p * q
            chances = new
        return chances

    @functools.cache
    def value(cell, turns, moves):
        if level[cell] in (HOLE, GOAL):
            return float(level[cell] == GOAL)
        if not turns or not moves:
            return 0.0
        return max(
            sum(p * value(to, turns - 1, moves - k) for to, p in outcomes(cell, sequence).items())
            for k in range(1, min(budget.actions_per_turn, moves) + 1)
            for sequence in itertools.product(range(4), repeat=k)
        )

    return value(tuple(np.argwhere(level == START)[0].tolist()), budget.turns, budget.actions)


@pytest.mark.parametrize("limits", [(6, 3, 2), (5, 4, 2), (5, 2, 3), (4, 1, 4), (9, 2, 2)])
def test_it_is_the_best_of_all_policies(limits):
    budget = Budget(*limits)
    expected = [brute_force(level, budget, RATE) for level in TINY]
    np.testing.assert_allclose(committed_success(TINY, budget, RATE), expected, atol=1e-11)


def test_one_move_a_turn_or_no_slip_is_closed_loop(levels):
    for budget in (Budget(10, 10, 1), Budget(20, 10, 1), Budget(10, 12, 5)):
        np.testing.assert_allclose(committed_success(levels, budget, 1 / 3), optimal_success(levels, 10, 1 / 3))
    np.testing.assert_allclose(committed_success(levels, Budget(10, 1, 10), 1.0), optimal_success(levels, 10, 1.0))


def test_the_registered_oracle_keeps_the_budget(levels):
    rate, budget = float(PARAMS.success_rate), Budget(10, 2, 2)
    found = LEVEL_BASELINES(PARAMS, levels, budget)
    assert found.optimal_is == EXACT
    np.testing.assert_array_equal(found.random, random_success(levels, 4, rate))
    np.testing.assert_array_equal(found.optimal, committed_success(levels, budget, rate))
    short = PARAMS.replace(max_steps_in_episode=jnp.int32(3))
    np.testing.assert_array_equal(LEVEL_BASELINES(short, levels, budget).random, random_success(levels, 3, rate))


def test_a_search_that_is_too_large_is_replaced_and_named(levels, monkeypatch):
    monkeypatch.setattr(open_loop, "MAX_BELIEFS", 100)
    with pytest.raises(open_loop.TooManyBeliefsError, match="more than 100"):
        committed_success(levels, Budget(10, 2, 5), 1 / 3)
    found = LEVEL_BASELINES(PARAMS, levels, Budget(10, 2, 5))
    assert found.optimal_is == CLOSED_LOOP
    np.testing.assert_allclose(found.optimal, optimal_success(levels, 10, 1 / 3), rtol=1e-6)


def test_a_budget_of_nothing_is_refused():
    for limits in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="expected at least 1 of each"):
            Budget(*limits)
    assert Budget(10, 2, 2).reachable == 4
    assert Budget(3, 2, 2).reachable == 3
