"""Sokoban at full size: contracts, and the law of larger levels and of the generator on the host."""

import jax
import numpy as np
import pytest
from sokoban_law import check_all, draw

from envs_jax.sokoban import TAGS
from envs_jax.sokoban.oracle import plan_lengths, random_success, solve
from envs_jax.testing import check_env


@pytest.fixture(scope="module")
def larger():
    return draw("LargerSokoban", 1024)


@pytest.mark.parametrize("tag", TAGS)
def test_generated_levels_keep_the_contract(tag):
    check_env(*TAGS[tag](), key=jax.random.key(0))


def test_larger_levels_follow_the_original(larger):
    check_all(larger, 2)
    lengths = np.array([len(solve(level)) for level in larger], float)
    np.testing.assert_allclose(lengths.mean(), 5.82, atol=0.2)
    np.testing.assert_allclose(100 * (lengths <= 5).mean(), 45.3, atol=3)
    np.testing.assert_allclose(100 * (lengths <= 10).mean(), 99.5, atol=1)
    np.testing.assert_allclose((larger > 0).sum((1, 2)).mean(), 18.2, atol=0.5)
    assert 0.02 < random_success(larger, 10)[:, -1].mean() < 0.032
    assert (plan_lengths(larger, 10) >= 0).mean() > 0.98
