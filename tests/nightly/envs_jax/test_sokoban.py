"""Sokoban at full size: contracts, and the law of larger levels and of the generator on the host."""

import jax
import numpy as np
import pytest
import xla_settings
from host_levels import generate_pack
from sokoban_law import SIMPLE_DISPLACEMENTS, SIMPLE_LENGTHS, check_all, displacements, draw, shares

from envs_jax.sokoban import TAGS
from envs_jax.sokoban.oracle import plan_lengths, random_success, solve
from envs_jax.testing import check_env


@pytest.fixture(scope="module")
def larger():
    return draw("LargerSokoban", 1024)


@pytest.mark.parametrize("tag", TAGS)
def test_generated_levels_keep_the_contract(tag):
    check_env(*TAGS[tag](), key=jax.random.key(0))


def test_a_level_does_not_depend_on_the_others_of_its_batch(larger):
    keys = jax.random.split(jax.random.key(1), len(larger))
    with xla_settings.optimized():
        alone = jax.jit(TAGS["LargerSokoban"]()[0].generator)
        np.testing.assert_array_equal(larger[::97], np.stack([alone(key) for key in keys[::97]]))


def test_larger_levels_follow_the_original(larger):
    check_all(larger, 2)
    lengths = np.array([len(solve(level)) for level in larger], float)
    np.testing.assert_allclose(lengths.mean(), 5.82, atol=0.2)
    np.testing.assert_allclose(100 * (lengths <= 5).mean(), 45.3, atol=3)
    np.testing.assert_allclose(100 * (lengths <= 10).mean(), 99.5, atol=1)
    np.testing.assert_allclose((larger > 0).sum((1, 2)).mean(), 18.2, atol=0.5)
    assert 0.02 < random_success(larger, 10)[:, -1].mean() < 0.032
    assert (plan_lengths(larger, 10) >= 0).mean() > 0.98


def test_other_symbols_same_difficulty():
    levels = draw("SokobanDifferentGridVocab", 1024)
    check_all(levels, 1)
    np.testing.assert_allclose(np.mean([len(solve(level)) for level in levels]), 4.11, atol=0.2)
    assert 0.16 < random_success(levels, 10)[:, -1].mean() < 0.20
    assert (plan_lengths(levels, 10) >= 0).mean() > 0.985


def test_host_packs_follow_the_original(larger):
    levels = generate_pack(range(1500))
    check_all(levels, 1)
    lengths = [len(solve(level)) for level in levels]
    np.testing.assert_allclose(shares(lengths, SIMPLE_LENGTHS), [*SIMPLE_LENGTHS.values()], atol=3)
    found = shares(displacements(levels), SIMPLE_DISPLACEMENTS)
    np.testing.assert_allclose(found, [*SIMPLE_DISPLACEMENTS.values()], atol=3)
    assert 0.165 < random_success(levels, 10)[:, -1].mean() < 0.20
    levels, bins = generate_pack(range(1000), 8, 8, boxes=2, search_depth=10), range(1, 8)
    check_all(levels, 2)
    # Two samples of a thousand: one standard error of the difference is at most 2.2 points.
    np.testing.assert_allclose(shares(displacements(levels), bins), shares(displacements(larger), bins), atol=5)
