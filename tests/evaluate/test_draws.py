"""Levels of an evaluation have different contents."""

import functools

import jax
import numpy as np
import pytest

import envs_jax
from agentrl_jax.evaluate.draws import MOST_DRAWS, Draws
from envs_jax.splits import Split, level_hashes


def keys(numbers):
    return jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(7)))(np.asarray(numbers))


def make(name, split=Split.ANY, **options):
    env, params = envs_jax.make(name, **options)
    return env, params, Draws(env, params, keys, split)


@pytest.mark.parametrize("split", [Split.ANY, Split.TEST])
def test_contents_are_different_and_those_of_the_draws(split):
    """The first of each content is kept, whatever number is wanted first."""
    env, params, draws = make("FrozenLake", split, height=3, width=3)
    small, _ = draws.first(5)
    numbers, levels = draws.first(48)
    assert len(numbers) == len(levels) == 48
    np.testing.assert_array_equal(small, numbers[:5])
    np.testing.assert_array_equal(make("FrozenLake", split, height=3, width=3)[2].first(48)[0], numbers)
    assert len(np.unique(level_hashes(env, params, levels), axis=0)) == 48
    every = envs_jax.registry.sample_levels(env, params, keys(np.arange(numbers[-1] + 1)), split)
    np.testing.assert_array_equal(every[numbers], levels)
    hashes = level_hashes(env, params, every)
    first = np.sort(np.unique(hashes, axis=0, return_index=True)[1])
    np.testing.assert_array_equal(first, numbers)


def test_a_small_space_has_fewer():
    """After so many draws for each wanted level as are allowed."""
    env, params, draws = make("FrozenLake", height=2, width=2)
    numbers, levels = draws.first(64)
    assert 0 < len(numbers) == len(levels) < 64
    every = envs_jax.registry.sample_levels(env, params, keys(np.arange(MOST_DRAWS * 64)), Split.ANY)
    assert len(np.unique(level_hashes(env, params, every), axis=0)) == len(numbers)


def test_environments_without_levels_have_all_draws():
    numbers, levels = make("Bandit")[2].first(40)
    assert numbers.tolist() == list(range(40))
    assert levels.shape == (40, 0, 0)
