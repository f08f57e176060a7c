import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec
from made_up import TRAJECTORY

from agentrl_jax.config import decode
from agentrl_jax.errors import BadValue
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout import rng
from agentrl_jax.rollout.envs.batched_env import start_state
from agentrl_jax.rollout.envs.level_splits import LevelSplits, TaskLevels, level_splits
from agentrl_jax.setup import build, build_inputs, build_model, level_pools
from envs_jax.splits import Split, split_of_level

LAKE = {"env": "FrozenLake", "groups": 2, "sampling": {"kind": "prioritized", "levels": 12}}
TASKS = [LAKE, {"env": "FrozenLake", "groups": 1}, {"env": "Bandit", "groups": 1, "sampling": {"kind": "distinct"}}]
TASKS[2]["sampling"]["levels"] = 3
KEY = jax.random.key(4)


def config_of(*tasks, seed=0):
    return decode({"tasks": list(tasks), "seed": seed, "rollout": {"group_size": 4}, "algo": {"preset": "grpo"}})


def pools_of(config):
    env = build.build_compiled_env(config, build_model.load_tokenizer(config.model))
    return env, level_pools.new_pools(config, env, level_splits(env))


@pytest.fixture(scope="module")
def made():
    config = config_of(*TASKS)
    return config, *pools_of(config)


def starts(env, pool, key):
    ids = build_inputs.episode_ids(group=0 * pool.level, member=0 * pool.level, task=0 * pool.level, level=pool.level)
    task = env.tasks[0]

    def start(key, level):
        options = {"params": task.env_params, "split": jnp.int32(Split.TRAIN)}
        state = start_state(task.env, key, level, jnp.bool_(True), **options)[0]
        of_split = split_of_level(task.env, state, task.env_params)
        return task.env.level_hash(state, task.env_params), of_split

    return map(np.asarray, jax.jit(jax.vmap(start))(rng.level_key(key, ids), ids.level))


def test_a_pool_has_different_training_levels_that_are_the_same_in_every_iteration(made):
    _, env, (pool, none, arms) = made
    assert none is None
    assert len(arms.level) == 3
    hashes, splits = starts(env, pool, KEY)
    assert len(np.unique(hashes, axis=0)) == len(pool.level) == 12
    assert splits.tolist() == [Split.TRAIN] * 12
    np.testing.assert_array_equal(next(starts(env, pool, jax.random.key(5))), hashes)
    other = pools_of(config_of(LAKE, seed=1))[1][0]
    assert not {*other.level.tolist()} & {*pool.level.tolist()}
    assert pools_of(config_of({"env": "FrozenLake", "groups": 1}))[1] is None


def test_a_pool_of_a_level_file_has_its_different_training_rows():
    split, repeated = np.array([0, 2, 0, 1, 0, 0]), np.array([0, 0, 0, 0, 1, 0], bool)
    splits = LevelSplits((TaskLevels("", split, repeated_rows=repeated),))
    env = types.SimpleNamespace(tasks=[types.SimpleNamespace(has_items=False)])
    for levels, expected in ((0, {0, 2, 5}), (2, {0, 2, 5})):
        task = LAKE | {"sampling": {"kind": "distinct", "levels": levels}}
        found = level_pools.new_pools(config_of(task), env, splits)[0].level.tolist()
        assert {*found} <= expected
        assert len(found) == (levels or 3)
    with pytest.raises(BadValue) as error:
        level_pools.new_pools(config_of(LAKE), env, splits)
    assert (error.value.key, error.value.value) == ("tasks.0.sampling.levels", 12)


def test_the_same_levels_are_chosen_on_any_number_of_devices(made):
    config, _, pools = made
    groups = len(TRAJECTORY.num_turns) // 4
    found = []
    for devices in (1, 4):
        mesh = make_mesh(devices)
        rows, same = (NamedSharding(mesh, spec) for spec in (Spec("data"), Spec()))
        state, history = jax.device_put(pools, same), []
        for iteration in range(3):
            ids = level_pools.choose(state, build_inputs.training_ids(config), config, KEY, iteration)
            levels = np.asarray(ids.level).reshape(groups, 4)
            assert (levels == levels[:, :1]).all()
            assert levels[2, 0] == -1
            assert len({*levels[:2, 0]}) == 2
            played = jax.device_put(TRAJECTORY.replace(ids=ids), rows)
            settings = build_inputs.rollout_settings(config, made[1], 16, 1.0, iteration=iteration)
            state, metrics = level_pools.after(state, played, settings, config, iteration)
            history.append((levels.tolist(), jax.tree.map(np.asarray, (state, metrics))))
        found.append(history)
    jax.tree.map(np.testing.assert_array_equal, *found)
    metrics = found[0][-1][1][1]
    assert metrics["levels/Bandit/different"] == 3
    assert "levels/FrozenLake-2/different" not in metrics


def test_pools_that_cannot_be_made_are_refused(monkeypatch):
    monkeypatch.setattr(level_pools, "_APART", level_pools.DRAWN_AT_ONCE)
    for number in (0, 10**6):
        with pytest.raises(BadValue) as error:
            pools_of(config_of(LAKE | {"sampling": {"kind": "distinct", "levels": number}}))
        assert (error.value.key, error.value.value) == ("tasks.0.sampling.levels", number)
