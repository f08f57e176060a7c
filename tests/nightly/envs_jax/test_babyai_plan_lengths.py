"""How many actions levels need: levels of our generator against levels of MiniGrid's, by the same search."""

from collections import Counter

import babyai_fixtures as recorded
import numpy as np
import pytest
import xla_settings
from babyai_levels import draw_arrays, numbers_of, p_value

from envs_jax.babyai.env import BabyAI
from envs_jax.babyai.search import shortest_plans

NUMBERS = tuple(np.unique(recorded.read("layouts")["level"]).tolist())
"""Where a search of so many situations mostly ends."""

ENV = BabyAI(recorded.SHAPE)
SITUATIONS, ROUNDS = 1000, 20
GENERATED = 500
"""Of each number, beside 250 of MiniGrid's."""


def lengths(levels):
    """How many levels have a shortest plan of each length, no plan, or a search that was given up."""
    counts = Counter()
    for begin in range(0, len(levels), 125):
        with xla_settings.optimized():
            plans = shortest_plans(ENV, ENV.default_params, levels[begin : begin + 125], ROUNDS, max_nodes=SITUATIONS)
        for plan in plans:
            without = "none" if plan.complete else "given up"
            counts[without if plan.actions is None else str(len(plan.actions))] += 1
    return counts


@pytest.fixture(scope="module")
def generated():
    return draw_arrays(upstream=True, count=16 * 1024, numbers=NUMBERS, seed=2, batch=1024, shape=recorded.SHAPE)


@pytest.mark.parametrize("number", NUMBERS)
def test_shortest_plans_are_as_long_as_for_levels_of_minigrid(generated, number):
    theirs = lengths(recorded.all_levels("layouts")[recorded.read("layouts")["level"] == number])
    levels = generated[numbers_of(generated) == number][:GENERATED]
    assert len(levels) == GENERATED
    ours = lengths(levels)
    assert theirs["given up"] < theirs.total() / 2
    assert p_value(ours, theirs) > 0.001 / len(NUMBERS), (ours, theirs)
