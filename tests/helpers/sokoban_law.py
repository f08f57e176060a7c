"""Statistics of Sokoban's levels, measured on RAGEN's generator."""

import numpy as np

from envs_jax.sokoban.levels import check_level

SIMPLE_LENGTHS = {1: 8.9, 2: 24.1, 3: 10.3, 4: 14.7, 5: 16.9, 6: 10.0, 7: 5.6, 8: 5.5, 9: 2.0, 10: 1.3}


def check_all(levels, boxes):
    for number, level in enumerate(levels):
        check_level(level, f"level {number}")
    assert (np.isin(levels, (3, 4)).sum((1, 2)) == boxes).all()
    assert not (levels == 3).any()
    assert (levels[:, [0, -1], :] == 0).all()
    assert (levels[:, :, [0, -1]] == 0).all()
