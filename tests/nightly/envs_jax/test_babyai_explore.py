"""The explorer looks around until it sees what is wanted."""

import functools

import chex
import jax
import numpy as np
from babyai_games import PARAMS, SMALL, reset, walk
from explored_balls import BOARDS, LIMIT, NONE, names_ball

from envs_jax.babyai import codes, explore, macros, search
from envs_jax.babyai.search import on_cpu
from envs_jax.babyai.view import cells_of

RED = codes.COLOR_NAMES.index("red")


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
