"""Contracts and baselines of registered environments beyond what is quick, and the law of larger levels of Sokoban."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xla_settings
from sokoban_boards import TWO_BOXES, check_all, generate_pack

from envs_jax import known_baselines, registry
from envs_jax.checks import check_registered
from envs_jax.sokoban import TAGS, Sokoban
from envs_jax.sokoban.oracle import plan_lengths, random_success, solve
from envs_jax.testing import check_env


@pytest.mark.parametrize(
    ("name", "seed"), [*((tag, 0) for tag in TAGS), ("Bandit", 1), ("FrozenLake", 1), ("CoordFrozenLake", 1)]
)
def test_environments_keep_the_contract(name, seed):
    check_env(*registry.make(name), key=jax.random.key(seed))


def test_a_registered_environment_passes_with_what_it_declares():
    report = check_registered("FrozenLake-deterministic", seeds=64)
    assert all(found.status == "pass" for found in report.results)


def test_a_pack_keeps_the_contract():
    env, pack = Sokoban(7, 7, 2, observation="grid_coord"), generate_pack(range(3), *TWO_BOXES)
    check_env(env, env.default_params.replace(levels=jnp.asarray(pack)), key=jax.random.key(0), num_steps=4)


@pytest.mark.parametrize("name", [name for name in known_baselines.BASELINES if "Sokoban" in name])
def test_the_table_of_baselines_is_what_is_computed(name):
    assert known_baselines.BASELINES[name] == pytest.approx(known_baselines.compute(name), abs=1e-6)


DIGESTS = {
    (5, 5, 1, 6): "f10bd79d29781ae1abbaa72a62ca162bb8fc5c0f370d36a383c2853440a0b84f",
    (8, 8, 2, 10): "5fc6fb9bfba47d1281e7919bd1c57d1290af383fd3fbc565faf33a8f26e05c9c",
}


@pytest.mark.parametrize("options", DIGESTS)
def test_the_levels_of_a_key_are_those_of_earlier_versions(options):
    assert hashlib.sha256(generate_pack(range(300), *options).tobytes()).hexdigest() == DIGESTS[options]


def test_larger_levels_follow_the_original():
    env, _ = TAGS["LargerSokoban"]()
    with xla_settings.optimized():
        larger = np.asarray(jax.jit(jax.vmap(env.generator))(jax.random.split(jax.random.key(1), 1024)))
    check_all(larger, 2)
    lengths = np.array([len(solve(level)) for level in larger], float)
    np.testing.assert_allclose(lengths.mean(), 5.82, atol=0.2)
    np.testing.assert_allclose(100 * (lengths <= 5).mean(), 45.3, atol=3)
    np.testing.assert_allclose(100 * (lengths <= 10).mean(), 99.5, atol=1)
    np.testing.assert_allclose((larger > 0).sum((1, 2)).mean(), 18.2, atol=0.5)
    assert 0.02 < random_success(larger, 10)[:, -1].mean() < 0.032
    assert (plan_lengths(larger, 10) >= 0).mean() > 0.98
