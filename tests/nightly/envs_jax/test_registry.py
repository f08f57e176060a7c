"""The table of baselines, and contracts of registered environments, beyond what is quick."""

import jax
import pytest

import envs_jax
from envs_jax import known_baselines
from envs_jax.testing import check_env


@pytest.mark.parametrize("name", ["Bandit", "CoordFrozenLake"])
def test_environments_keep_the_contract(name):
    check_env(*envs_jax.make(name), key=jax.random.key(1))


@pytest.mark.parametrize("name", [name for name in known_baselines.BASELINES if "Sokoban" in name])
def test_the_table_of_baselines_is_what_is_computed(name):
    assert known_baselines.BASELINES[name] == pytest.approx(known_baselines.compute(name), abs=1e-6)
