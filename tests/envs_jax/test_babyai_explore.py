"""Demonstrations that look around before they take a shortest plan."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import registry
from envs_jax.babyai import macros
from envs_jax.babyai.explore import explorations

LIMIT = 20


@pytest.fixture(scope="module")
def game():
    env, params = envs_jax.make("BabyAI-GoToRedBall", mode="upstream")
    boards = registry.sample_levels(env, params, jax.random.split(jax.random.key(3), 32))
    return env, params, boards, jax.jit(functools.partial(env.step_env, jax.random.key(0)))


def texts(game, board, actions):
    """The state and the text before each action and after the last one."""
    env, params, _, step = game
    _, state = env.reset_to_level(board, params)
    found = [(state, env.render(state, params))]
    for action in actions:
        _, state, *_ = step(state, jnp.int32(action), params)
        found.append((state, env.render(state, params)))
    return found


def names_ball(text):
    return "red ball" in (text.partition("\n")[2] if text.startswith("Your goal") else text)


def test_looking_around_ends_with_the_first_view_of_what_is_wanted(game):
    env, params, boards, _ = game
    looked = explorations(env, params, boards, np.zeros((len(boards), 0), np.int32), LIMIT)
    counts = (looked >= 0).sum(axis=1)
    assert counts.min() == 0
    assert counts.max() == 2
    for board, actions, count in zip(boards, looked, counts):
        assert (actions[:count] >= 0).all(), "padding follows the actions"
        *before, (_, last) = texts(game, board, actions[:count])
        assert names_ball(last), last
        assert not any(names_ball(text) for _, text in before)
        assert not {macros.DROP_IT, macros.CHECK} & set(actions.tolist())


def test_random_actions_count_as_seen(game):
    """What was in view during the actions before need not be looked for."""
    env, params, boards, _ = game
    none = np.zeros((len(boards), 0), np.int32)
    looked = explorations(env, params, boards, none, LIMIT)
    assert (explorations(env, params, boards, looked, LIMIT) == -1).all()
    first = looked[:, :1]
    rest = explorations(env, params, boards, first, LIMIT)[:, :-1]
    np.testing.assert_array_equal(np.where(first >= 0, rest, -1), np.where(first >= 0, looked[:, 1:], -1))


@pytest.mark.parametrize("most", [0, 4])
def test_what_is_imitated_solves_the_level_within_the_limit(game, most):
    env, params, boards, _ = game
    make = registry.spec("BabyAI-GoToRedBall").exploring_after_random
    found = make(env, params, boards, LIMIT, most, jax.random.key(1))
    shortest = registry.spec("BabyAI-GoToRedBall").plan_after_random(
        env, params, boards, LIMIT, most, jax.random.key(1)
    )
    longer = 0
    for board, pair, direct in zip(boards, found, shortest):
        assert (pair is None) == (direct is None)
        if pair is None:
            continue
        first, plan = pair
        np.testing.assert_array_equal(first, direct[0])
        assert len(first) <= most
        assert len(direct[1]) <= len(plan) <= LIMIT - len(first)
        longer += len(plan) > len(direct[1])
        (state, _) = texts(game, board, [*first, *plan])[-1]
        assert env.success(state, params)
    assert longer > 0


def test_a_plan_that_would_be_too_long_is_the_shortest_one(game):
    env, params, boards, _ = game
    spec = registry.spec("BabyAI-GoToRedBall")
    found = spec.exploring_after_random(env, params, boards, 3, 0, jax.random.key(1))
    shortest = spec.plan(env, params, boards, 3)
    assert [pair is None for pair in found] == [plan is None for plan in shortest]
    assert any(len(pair[1]) == len(plan) == 3 for pair, plan in zip(found, shortest) if pair is not None)
    assert all(len(pair[1]) <= 3 for pair in found if pair is not None)
