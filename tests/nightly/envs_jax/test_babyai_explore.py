"""The explorer looks around until it sees what is wanted."""

import functools

import chex
import jax
import numpy as np
from babyai_games import PARAMS, SMALL, reset, walk
from explored_balls import BOARDS, LIMIT, NONE, names_ball

from envs_jax.babyai import explore, macros, search
from envs_jax.babyai.search import on_cpu


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
