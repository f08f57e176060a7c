"""Demonstrations that look around before they take a shortest plan."""

import functools

import chex
import jax
import numpy as np
import pytest
import scipy.ndimage
from babyai_games import PARAMS, RED_BALLS, SMALL, reset, small_items, walk

from envs_jax import registry
from envs_jax.babyai import baselines, codes, explore, items, levels, macros, search
from envs_jax.babyai.levels import HEADER
from envs_jax.babyai.search import Plan, on_cpu
from envs_jax.babyai.view import cells_of

LIMIT = 20
BOARDS = small_items(RED_BALLS[:24])
NONE = np.full((len(BOARDS), 1), -1, np.int32)


def names_ball(text):
    return "red ball" in (text.partition("\n")[2] if text.startswith("Your goal") else text)


RED = codes.COLOR_NAMES.index("red")
SPEC = registry.spec("BabyAI-GoToRedBall")


def test_a_plan_that_would_be_too_long_is_cut_off_or_none_where_nothing_is_looked_at(monkeypatch):
    looked = np.array([[4, -1, -1], [4, 5, 6], [-1, -1, -1], [4, 5, -1]], np.int32)
    rests = [Plan((7, 8), True, 9), Plan((7,), True, 9), Plan(None, True, 9), Plan((7,), True, 9)]
    asked = []
    monkeypatch.setattr(baselines, "explorations", lambda *_: looked)
    monkeypatch.setattr(baselines, "_search", lambda *_, first: asked.append(first) or rests)
    first = np.array([[1], [-1], [1], [1]], np.int32)
    found = SPEC.exploring_after(SMALL, PARAMS, BOARDS[:4], 3, first)
    assert [None if plan is None else plan.tolist() for plan in found] == [[4, 7], [4, 5, 6], None, [4, 5]]
    assert asked[0].tolist() == [[1, 4, -1, -1], [-1, 4, 5, 6], [1, -1, -1, -1], [1, 4, 5, -1]]
    found = SPEC.plan_after(SMALL, PARAMS, BOARDS[:4], 2, first)
    assert [None if plan is None else plan.tolist() for plan in found] == [None, [7], None, [7]]
    assert asked[1] is first


@pytest.mark.nightly
def test_what_is_imitated_after_other_actions_solves_the_level():
    first = np.where(np.arange(len(BOARDS))[:, None] % 2, macros.TURN_LEFT, NONE)
    for board, taken, plan in zip(BOARDS, first, SPEC.exploring_after(SMALL, PARAMS, BOARDS, LIMIT, first)):
        (state, _) = walk(SMALL, board, [*taken[taken >= 0], *plan])[-1]
        assert SMALL.success(state, PARAMS)


def two_rooms(door):
    """A level with a red ball in the right room, and with a door and a red key in view in the left one."""
    level = np.array(BOARDS[0])
    cells, header = level[: SMALL.shape.height], level[SMALL.shape.height :].reshape(-1)
    cells[1:7, 1:7] = codes.EMPTY
    cells[1:7, 4] = codes.WALL
    cells[3, 4], cells[5, 6], cells[2, 3] = (codes.cell_of(form, RED) for form in (door, codes.BALL, codes.KEY))
    header[[HEADER.index(name) for name in ("x", "y", "heading")]] = 1, 1, 0
    return level


def test_a_locked_door_and_its_key_are_enough_where_what_is_wanted_is_locked_away():
    levels = np.stack([two_rooms(door) for door in (codes.LOCKED_DOOR, codes.CLOSED_DOOR)])
    locked, closed = (actions[actions >= 0] for actions in explore.explorations(SMALL, PARAMS, levels, NONE[:2], LIMIT))
    assert len(locked) == 0
    assert [names_ball(text) for _, text in walk(SMALL, levels[1], closed)] == [False] * len(closed) + [True]
    for level, plan in zip(levels, SPEC.exploring_after(SMALL, PARAMS, levels, LIMIT, NONE[:2])):
        (state, _) = walk(SMALL, level, plan)[-1]
        assert SMALL.success(state, PARAMS)


def test_things_that_are_reached_without_a_key_are_those_beside_the_cells_of_the_agent():
    """Against connected components, on levels with several rooms; things are no obstacles, locked doors are."""
    shape = items.SHAPE
    start = jax.jit(jax.vmap(lambda level: levels.decode(level, shape).world))
    worlds = start(items.load(tuple(items.stored_indices())[::16]))
    found, cells = np.asarray(jax.jit(jax.vmap(explore._reached))(worlds)), np.asarray(worlds.cells)
    some = set()
    for number, grid in enumerate(cells):
        locked = (grid >= codes.OBJECT) & (codes.form_of(grid.astype(int)) == codes.LOCKED_DOOR)
        y, x = int(worlds.y[number]), int(worlds.x[number])
        rooms, _ = scipy.ndimage.label(~((grid == codes.WALL) | locked))
        own = scipy.ndimage.binary_dilation(rooms == rooms[y, x])
        places = np.asarray(worlds.places[number])
        expected = (places < 0) | own.reshape(-1)[np.maximum(places, 0)]
        np.testing.assert_array_equal(found[number], expected)
        some |= {*expected[places >= 0].tolist()}
    assert some == {True, False}


@pytest.mark.nightly
def test_looking_around_ends_with_the_first_view_of_what_is_wanted():
    looked = explore.explorations(SMALL, PARAMS, BOARDS, NONE, LIMIT)
    counts = (looked >= 0).sum(axis=1)
    assert counts.min() == 0
    assert 2 <= counts.max() <= 4
    for board, actions, count in zip(BOARDS, looked, counts):
        assert (actions[:count] >= 0).all(), "padding follows the actions"
        assert [names_ball(text) for _, text in walk(SMALL, board, actions[:count])] == [False] * count + [True]
        assert not {macros.DROP_IT, macros.CHECK} & set(actions.tolist())
    first = looked[:, :1]  # random actions count as seen
    rest = explore.explorations(SMALL, PARAMS, BOARDS, first, LIMIT)[:, :-1]
    np.testing.assert_array_equal(np.where(first >= 0, rest, -1), np.where(first >= 0, looked[:, 1:], -1))
    states = jax.vmap(functools.partial(reset, SMALL))(BOARDS)
    known = np.ones((len(BOARDS), SMALL.shape.height, SMALL.shape.width), bool)
    with on_cpu():  # as before, so that nothing is compiled again
        assert set(explore._next(SMALL, PARAMS, states, known)) == {-1}, "nothing new could be seen"
        after, *_ = search.in_batches(functools.partial(search.advance, SMALL), PARAMS, states, NONE[:, 0])
    chex.assert_trees_all_equal(after, jax.device_get(states))


@pytest.mark.nightly
def test_an_action_depends_on_nothing_but_what_was_shown():
    """Other levels with the same first view, with walls where it does not reach, have the same first action."""
    rng, others, chosen, shape = np.random.default_rng(0), [], [], SMALL.shape
    for number, board in enumerate(BOARDS):
        ((state, text),) = walk(SMALL, board, [])
        hidden = np.ones((shape.height, shape.width), bool)
        rows, columns = (np.asarray(cells) for cells in cells_of(state.world))
        inside = (rows >= 0) & (rows < hidden.shape[0]) & (columns >= 0) & (columns < hidden.shape[1])
        shown = inside & (np.asarray(state.view) != codes.UNSEEN)
        hidden[rows[shown], columns[shown]] = False
        places = np.argwhere(hidden & ~np.isin(board[: shape.height], (codes.WALL, codes.cell_of(codes.BALL, RED))))
        if names_ball(text) or len(places) < 2:
            continue
        other = np.array(board)
        step = codes.DIRECTIONS[(int(state.world.heading) + rng.choice([1, 3])) % 4]  # to the right, or to the left
        beside = (places - (int(state.world.y), int(state.world.x))) @ step[::-1] > 0
        other[tuple(places[beside].T)] = codes.WALL
        others.append(other)
        chosen.append(number)
    assert len(chosen) > 8
    assert (np.stack(others) != BOARDS[chosen]).any()
    both = np.concatenate([BOARDS[chosen], np.stack(others)])
    first, second = explore.explorations(SMALL, PARAMS, both, np.resize(NONE, (len(both), 1)), 1).reshape(2, -1)
    np.testing.assert_array_equal(first, second)
    assert (first >= 0).all()
