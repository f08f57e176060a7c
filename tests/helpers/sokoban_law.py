"""Statistics of Sokoban's levels, measured on RAGEN's generator."""

import jax
import numpy as np
import xla_settings

from envs_jax.sokoban import TAGS
from envs_jax.sokoban.levels import check_level

SIMPLE_LENGTHS = {1: 8.9, 2: 24.1, 3: 10.3, 4: 14.7, 5: 16.9, 6: 10.0, 7: 5.6, 8: 5.5, 9: 2.0, 10: 1.3}
SIMPLE_DISPLACEMENTS = {1: 28.5, 2: 41.3, 3: 22.8, 4: 7.4}


def shares(values, bins):
    return np.array([100 * np.mean(np.asarray(values) == b) for b in bins])


def displacements(levels):
    """Smallest total distance of boxes to targets over the pairings, i64[N] (one or two boxes)."""
    places = [(np.argwhere(level == 4), np.argwhere((level == 2) | (level == 6))) for level in levels]
    distances = [np.abs(boxes[:, None] - targets).sum(-1) for boxes, targets in places]
    return np.array([min(np.trace(found), np.trace(found[:, ::-1])) for found in distances])


def draw(tag, count):
    env, _ = TAGS[tag]()
    with xla_settings.optimized():
        return np.asarray(jax.jit(jax.vmap(env.generator))(jax.random.split(jax.random.key(1), count)))


def check_all(levels, boxes):
    for number, level in enumerate(levels):
        check_level(level, f"level {number}")
    assert (np.isin(levels, (3, 4)).sum((1, 2)) == boxes).all()
    assert not (levels == 3).any()
    assert (levels[:, [0, -1], :] == 0).all()
    assert (levels[:, :, [0, -1]] == 0).all()
