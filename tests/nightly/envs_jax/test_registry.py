"""The table of baselines, and contracts of registered environments, beyond what is quick."""

import jax
import numpy as np
import pytest

import envs_jax
from envs_jax import known_baselines
from envs_jax.budget import Budget
from envs_jax.testing import check_env


@pytest.mark.parametrize("name", ["Bandit", "CoordFrozenLake"])
def test_environments_keep_the_contract(name):
    check_env(*envs_jax.make(name), key=jax.random.key(1))


@pytest.mark.parametrize("name", [name for name in known_baselines.BASELINES if "Sokoban" in name])
def test_the_table_of_baselines_is_what_is_computed(name):
    assert known_baselines.BASELINES[name] == pytest.approx(known_baselines.compute(name), abs=1e-6)


def test_the_table_of_baselines_on_other_levels():
    """Within four standard errors of means over 64 levels; standard deviations are below 0.2 (random) and 0.3."""
    found = envs_jax.baselines("SimpleSokoban", jax.random.key(5), 64, Budget.one_per_turn(10))
    spread = 4 * np.array([0.2, 0.3]) / np.sqrt(64)
    assert (np.abs(np.subtract(found, known_baselines.BASELINES["SimpleSokoban"])) < spread).all()
