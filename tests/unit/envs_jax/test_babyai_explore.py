"""Demonstrations that look around before they take a shortest plan."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import registry
from envs_jax.babyai import macros
from envs_jax.babyai.codes import (
    BALL,
    CLOSED_DOOR,
    COLOR_NAMES,
    DIRECTIONS,
    EMPTY,
    KEY,
    LOCKED_DOOR,
    UNSEEN,
    WALL,
    cell_of,
)
from envs_jax.babyai.explore import explorations
from envs_jax.babyai.levels import HEADER
from envs_jax.babyai.view import cells_of

LIMIT = 20
RED = COLOR_NAMES.index("red")


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
    assert 2 <= counts.max() <= 4
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


def test_an_action_depends_on_nothing_but_what_was_shown(game):
    """Other levels with the same first view, with walls where it does not reach, have the same first action."""
    env, params, boards, _ = game
    rng, others, chosen = np.random.default_rng(0), [], []
    for number, board in enumerate(boards):
        _, state = env.reset_to_level(board, params)
        (text,) = (text for _, text in texts(game, board, []))
        hidden = np.ones((env.shape.height, env.shape.width), bool)
        rows, columns = (np.asarray(cells) for cells in cells_of(state.world))
        inside = (rows >= 0) & (rows < hidden.shape[0]) & (columns >= 0) & (columns < hidden.shape[1])
        shown = inside & (np.asarray(state.view) != UNSEEN)
        hidden[rows[shown], columns[shown]] = False
        places = np.argwhere(hidden & ~np.isin(board[: env.shape.height], (WALL, cell_of(BALL, RED))))
        if names_ball(text) or len(places) < 2:
            continue
        other = np.array(board)
        step = DIRECTIONS[(int(state.world.heading) + rng.choice([1, 3])) % 4]  # to the right, or to the left
        beside = (places - (int(state.world.y), int(state.world.x))) @ step[::-1] > 0
        other[tuple(places[beside].T)] = WALL
        others.append(other)
        chosen.append(number)
    assert len(chosen) > 8
    assert any((other != boards[number]).any() for number, other in zip(chosen, others))
    none = np.zeros((len(chosen), 0), np.int32)
    first, second = (explorations(env, params, some, none, 1) for some in (boards[chosen], np.stack(others)))
    np.testing.assert_array_equal(first, second)
    assert (first >= 0).all()


@pytest.mark.parametrize("most", [pytest.param(0, marks=pytest.mark.slow), 4])
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


def two_rooms(board, door):
    """A level with a red ball in the right room, and with a door and a red key in view in the left one."""
    level = np.array(board)
    cells, header = level[:8], level[8:].reshape(-1)
    cells[1:-1, 1:-1] = EMPTY
    cells[1:-1, 4] = WALL
    cells[3, 4], cells[5, 6], cells[2, 3] = (cell_of(form, RED) for form in (door, BALL, KEY))
    header[[HEADER.index(name) for name in ("x", "y", "heading")]] = 1, 1, 0
    return level


def test_a_locked_door_and_its_key_are_enough_where_what_is_wanted_is_locked_away(game):
    """Though there is more to see in the room. Behind a door that is not locked the ball is looked for."""
    env, params, boards, _ = game
    levels = np.stack([two_rooms(boards[0], door) for door in (LOCKED_DOOR, CLOSED_DOOR)])
    none = np.zeros((2, 0), np.int32)
    locked, closed = (actions[actions >= 0] for actions in explorations(env, params, levels, none, LIMIT))
    assert len(locked) == 0
    *before, (_, last) = texts(game, levels[1], closed)
    assert names_ball(last)
    assert not any(names_ball(text) for _, text in before)
    for level, plan in zip(
        levels, registry.spec("BabyAI-GoToRedBall").exploring_after(env, params, levels, LIMIT, none)
    ):
        (state, _) = texts(game, level, plan)[-1]
        assert env.success(state, params)
