"""Demonstrations that look around before they take a shortest plan."""

import functools
import re

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
    spec = registry.spec("BabyAI-GoToRedBall")
    first = spec.random_actions(env, params, boards, most, jax.random.key(1))
    found = spec.exploring_after(env, params, boards, LIMIT, first)
    shortest = spec.plan_after(env, params, boards, LIMIT, first)
    longer = 0
    for board, taken, plan, direct in zip(boards, first, found, shortest, strict=True):
        assert (plan is None) == (direct is None)
        if plan is None:
            continue
        taken = taken[taken >= 0]
        assert len(direct) <= len(plan) <= LIMIT - len(taken)
        longer += len(plan) > len(direct)
        (state, _) = texts(game, board, [*taken, *plan])[-1]
        assert env.success(state, params)
    assert longer > 0


def test_a_plan_that_would_be_too_long_is_cut_off(game):
    env, params, boards, _ = game
    spec = registry.spec("BabyAI-GoToRedBall")
    first = np.full((len(boards), 1), macros.TURN_LEFT, np.int32)
    whole = spec.exploring_after(env, params, boards, LIMIT, first)
    found = spec.exploring_after(env, params, boards, 3, first)
    assert max(map(len, whole)) > 2
    for plan, all_of_it in zip(found, whole, strict=True):
        np.testing.assert_array_equal(plan, all_of_it[:2])
    assert not any(plan is not None and len(plan) for plan in spec.exploring_after(env, params, boards, 1, first))


def test_a_key_is_looked_for_where_what_is_wanted_is_locked_away():
    """Once a locked door and its key have been seen, nothing else has to be looked for."""
    env, params = envs_jax.make("BabyAI-GoToImpUnlock")
    boards = registry.sample_levels(env, params, jax.random.split(jax.random.key(5), 24))
    step = jax.jit(functools.partial(env.step_env, jax.random.key(0)))
    ended = 0
    for board, actions in zip(boards, explorations(env, params, boards, np.zeros((24, 0), np.int32), 30)):
        _, state = env.reset_to_level(board, params)
        doors, keys = set(), set()
        for number, action in enumerate([*actions[actions >= 0], -1]):
            text = env.render(state, params).partition("\nAvailable actions")[0]
            doors |= set(re.findall(r"(\w+) locked door", text))
            keys |= set(re.findall(r"(\w+) key", text))
            assert not (doors & keys and action >= 0), (number, text)
            _, state, *_ = step(state, jnp.int32(action), params)
        ended += bool(doors & keys)
    assert ended > 12
