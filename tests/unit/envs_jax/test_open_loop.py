"""The optimum of an agent that commits to several moves per turn, against every policy on small boards."""

import functools
import itertools

import jax
import numpy as np
import pytest

import envs_jax
from envs_jax import registry
from envs_jax.budget import CLOSED_LOOP, EXACT, Budget
from envs_jax.frozen_lake import open_loop
from envs_jax.frozen_lake.open_loop import committed_success
from envs_jax.frozen_lake.oracle import optimal_success, random_success
from envs_jax.frozen_lake.text import GOAL, HOLE, START

TINY = np.array(
    [
        [[3, 0, 0], [0, 1, 0], [0, 0, 2]],
        [[0, 0, 3], [1, 0, 0], [2, 0, 1]],
        [[3, 1, 2], [0, 0, 0], [0, 1, 0]],
    ],
    np.int8,
)
RATE = 0.6


@pytest.fixture(scope="module")
def lakes():
    env, params = envs_jax.make("FrozenLake")
    return params, registry.sample_levels(env, params, jax.random.split(jax.random.key(1), 64))


def brute_force(level, budget, rate):
    """Success of the best policy, by trying every sequence of every length in every situation."""

    def move(cell, step):
        there = tuple(min(max(x + d, 0), 2) for x, d in zip(cell, step))
        return there

    steps = [(0, -1), (1, 0), (0, 1), (-1, 0)]

    def outcomes(cell, sequence):
        chances = {cell: 1.0}
        for action in sequence:
            new: dict = {}
            for at, p in chances.items():
                ended = level[at] in (HOLE, GOAL)
                for turn, q in ((0, rate), (1, (1 - rate) / 2), (3, (1 - rate) / 2)):
                    to = at if ended else move(at, steps[(action + turn) % 4])
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


def test_one_move_a_turn_is_closed_loop(lakes):
    _, levels = lakes
    for budget in (Budget(10, 10, 1), Budget(20, 10, 1), Budget(10, 12, 5)):
        np.testing.assert_allclose(committed_success(levels, budget, 1 / 3), optimal_success(levels, 10, 1 / 3))


def test_seeing_less_is_never_better(lakes):
    _, levels = lakes
    closed = optimal_success(levels, 10, 1 / 3)
    by_turns = [committed_success(levels, Budget(10, turns, 5), 1 / 3) for turns in (2, 3, 5)]
    for fewer, more in itertools.pairwise([*by_turns, closed]):
        assert (fewer <= more + 1e-11).all()
        assert fewer.mean() < more.mean() - 0.002
    by_moves = [committed_success(levels, Budget(10, 4, moves), 1 / 3) for moves in (1, 2, 3, 5)]
    for fewer, more in itertools.pairwise(by_moves):
        assert (fewer <= more + 1e-11).all()
    # Two moves per turn in five turns: some points below an agent that sees every state.
    assert 0.01 < closed.mean() - committed_success(levels, Budget(10, 5, 2), 1 / 3).mean() < 0.04


def test_without_slip_nothing_is_lost_by_committing(lakes):
    _, levels = lakes
    np.testing.assert_allclose(committed_success(levels, Budget(10, 1, 10), 1.0), optimal_success(levels, 10, 1.0))


def test_the_registered_oracle_keeps_the_budget(lakes):
    params, levels = lakes
    rate = float(params.success_rate)
    found = registry.level_baselines("FrozenLake", registry.make("FrozenLake")[0], params, levels, Budget(10, 2, 2))
    assert found.optimal_is == EXACT
    np.testing.assert_array_equal(found.random, random_success(levels, 4, float(params.success_rate)))
    np.testing.assert_array_equal(found.optimal, committed_success(levels, Budget(10, 2, 2), rate))
    short = params.replace(max_steps_in_episode=params.max_steps_in_episode * 0 + 3)
    found = registry.level_baselines("FrozenLake", registry.make("FrozenLake")[0], short, levels, Budget(10, 2, 2))
    np.testing.assert_array_equal(found.random, random_success(levels, 3, rate))


def test_a_search_that_is_too_large_is_replaced_and_named(lakes, monkeypatch):
    params, levels = lakes
    monkeypatch.setattr(open_loop, "MAX_BELIEFS", 100)
    with pytest.raises(open_loop.TooManyBeliefsError, match="more than 100"):
        committed_success(levels, Budget(10, 2, 5), 1 / 3)
    found = registry.level_baselines("FrozenLake", registry.make("FrozenLake")[0], params, levels, Budget(10, 2, 5))
    assert found.optimal_is == CLOSED_LOOP
    np.testing.assert_allclose(found.optimal, optimal_success(levels, 10, 1 / 3), rtol=1e-6)


def test_a_budget_of_nothing_is_refused():
    for limits in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="expected at least 1 of each"):
            Budget(*limits)
    assert Budget(10, 2, 2).reachable == 4
    assert Budget(3, 2, 2).reachable == 3
