"""Rotations and mirror images of levels of BabyAI, which belong to one split."""

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.babyai import BabyAI, items, levels
from envs_jax.babyai.codes import EMPTY, PLACES, WALL

STORED = (115, 1843, 1860, 22, 25, 63, 13, 246)
"""Levels of several sizes, with words of place (13), a key in a box (25), and an agent that holds something (22)."""
BODY = slice(items.SHAPE.height, None)
ENV = BabyAI(shape=items.SHAPE)


@jax.jit
@jax.vmap
def hashes_of(level):
    state = ENV.reset_to_level(level, ENV.default_params)[1]
    return ENV.level_hash(state, ENV.default_params), ENV.state_hash(state, ENV.default_params)


def hashes(found):
    return tuple(map(np.asarray, hashes_of(jnp.asarray(np.stack(found)))))


def test_all_images_are_one_level():
    words = 0
    for level in items.load(STORED):
        images = levels.images(level, items.SHAPE)
        assert len(images) == 8
        np.testing.assert_array_equal(images[0], level)
        level_hash, state_hash = hashes(images)
        assert len(np.unique(level_hash, axis=0)) == 1
        distinct = {image.tobytes() for image in images}
        assert len(np.unique(state_hash, axis=0)) == len(distinct) > 1
        for image in images[1:]:
            again = levels.images(image, items.SHAPE)
            assert {x.tobytes() for x in again} == distinct
        words += any((image[BODY] != level[BODY]).any() for image in images)
    assert words


def test_a_mirrored_level_whose_words_stay_is_another_one():
    (level,) = items.load((1018,))
    place = items.SHAPE.height * items.SHAPE.width + len(levels.HEADER) + 4  # of the thing to go to: on the left
    image = next(x for x in levels.images(level, items.SHAPE) if x.reshape(-1)[place] != level.reshape(-1)[place])
    other = image.copy()
    other.reshape(-1)[place] = level.reshape(-1)[place]
    level_hash, _ = hashes([level, image, other, *[level] * 5])
    assert (level_hash[0] == level_hash[1]).all()
    assert (level_hash[0] != level_hash[2]).any()


def test_one_that_does_not_fit_is_left_out():
    shape = levels.Shape(height=5, width=9, slots=4)
    grid = np.full((shape.rows, shape.width), WALL, np.int8)
    grid[1:4, 1:8] = EMPTY
    flat = grid[5:].reshape(-1)
    flat[:10] = (1, 2, 3, 0, 5, 1, 0, -1, -1, 0)
    flat[10:18] = (1, 0, 1, 1, PLACES.index("left"), -1, -1, -1)
    grid[5:] = flat.reshape(-1, 9)
    images = levels.images(grid, shape)
    assert len(images) == 4
    headers = [image[5:].reshape(-1) for image in images]
    assert [tuple(header[1:4]) for header in headers] == [(2, 3, 0), (6, 3, 2), (2, 1, 0), (6, 1, 2)]
    assert [PLACES[header[14]] for header in headers] == ["left", "right", "right", "left"]
    assert {tuple(header[7:9]) for header in headers} == {(-1, -1)}
