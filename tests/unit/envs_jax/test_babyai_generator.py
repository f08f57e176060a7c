"""The generator of BabyAI's levels: what each level has."""

import hashlib

import jax
import numpy as np
import pytest
from babyai_levels import ALL, Levels
from babyai_rules import can_be_fulfilled, check, reach

from envs_jax.babyai import codes, levels
from envs_jax.babyai.generator import NAMES, make_generator, shape_of

SHAPE = shape_of(ALL)
DRAWS = 1024
PROGRAM = jax.jit(jax.vmap(make_generator(ALL, SHAPE)))
KEYS = jax.random.split(jax.random.key(0), DRAWS)


def draw(keys):
    return np.concatenate([PROGRAM(part) for part in keys.reshape(-1, 128)])


@pytest.fixture(scope="module")
def drawn():
    return draw(KEYS)


@pytest.fixture(scope="module")
def found(drawn):
    return Levels(drawn, SHAPE)


def test_the_levels_of_a_key_are_those_of_earlier_versions(drawn):
    """From which recorded runs are played again; that they are right the other tests say, and nightly ones."""
    np.testing.assert_array_equal(drawn, draw(KEYS[::-1])[::-1])  # whatever is drawn beside it
    assert (drawn.shape, drawn.dtype) == ((DRAWS, SHAPE.rows, SHAPE.width), np.int8)
    assert len(np.unique(drawn, axis=0)) > 0.98 * DRAWS
    assert (
        hashlib.sha256(drawn.tobytes()).hexdigest()
        == "ea53e2b62788b2c852d35bb36afa6173567c3cb86972ea81631b2bbca5c2606f"
    )


def test_a_hidden_key_is_read_back_in_the_last_slot(found, drawn):
    start = jax.jit(levels.decode, static_argnums=1)(drawn[np.argmax(found.number == 26)], SHAPE)
    door = start.world.slot_cells[codes.form_of(start.world.slot_cells) == codes.LOCKED_DOOR][0]
    assert start.world.slot_cells[-1] == codes.cell_of(codes.KEY, int(codes.color_of(door)))


@pytest.mark.parametrize("number", ALL)
def test_levels_are_as_their_recipe_says_and_can_be_solved(found, number):
    level = found.of(number)
    check(number, level)
    assert can_be_fulfilled(level).all()
    if number == 18:
        assert not any(
            reach(level, i, blocked=level.thing[i])[0][level.thing[i] | level.door[i]].all() for i in range(len(level))
        )


def test_a_level_whose_target_cannot_be_reached_is_drawn_again():
    """One of these 27 would have such a target, in the only recipe where nothing can be moved out of the way."""
    level = Levels(draw(jax.random.split(jax.random.key(2), DRAWS)), SHAPE).of(20)
    assert len(level) == 27
    assert can_be_fulfilled(level).all()


def test_shapes():
    assert shape_of((3,)) == levels.Shape(8, 8, 1)
    assert shape_of((33, 4)) == levels.Shape(20, 20, 1)
    assert shape_of((26,)) == levels.Shape(22, 22, 3, hides=True)
    assert shape_of((*range(1, 12), 19, 20, 21, 30, 31, 33, 36)) == levels.Shape(22, 22, 30, clauses=4)
    assert shape_of(ALL) == levels.Shape(22, 22, 38, clauses=4, hides=True)
    assert (NAMES[1], [*NAMES]) == ("GoToRedBallGrey", [*ALL])
    for numbers in ((), (0,), (1, 41)):
        with pytest.raises(ValueError, match="expected at least one number from 1 to 40"):
            shape_of(numbers)
    with pytest.raises(ValueError, match="expected a shape that holds it"):
        make_generator((24,), shape_of((7,)))
