"""The level on which an episode starts: sampled from a split, or a row of a file."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from agentrl_jax.rollout.envs.batched_env import start_state
from envs_jax.splits import Split, split_of_level

KEYS = jax.random.split(jax.random.key(5), 6)


@pytest.fixture(scope="module")
def started():
    """Function (pack, level, wanted, split) -> (states, found, the splits of their levels), of six keys."""
    env, params = envs_jax.make("FrozenLake")

    @functools.partial(jax.jit, static_argnums=0)
    def run(has_pack, pack, level, wanted, split):
        chosen = params.replace(levels=pack) if has_pack else params
        start = functools.partial(start_state, env, params=chosen, split=split)
        states, found = jax.vmap(lambda key: start(key, level, wanted))(KEYS)
        return states, found, jax.vmap(lambda state: split_of_level(env, state, params))(states)

    def called(pack=None, level=-1, wanted=True, split=Split.ANY):
        levels = jnp.zeros((3, env.height, env.width), jnp.int8) if pack is None else pack
        return run(pack is not None, levels, jnp.int32(level), jnp.bool_(wanted), jnp.int32(split))

    return called


@pytest.mark.parametrize("split", [Split.TRAIN, Split.VALIDATION, Split.TEST])
def test_a_sampled_level_is_of_the_split(started, split):
    states, found, splits = started(split=split)
    assert np.asarray(found).all()
    assert set(splits.tolist()) == {int(split)}
    assert len(np.unique(np.asarray(states.level), axis=0)) > 1


def test_a_level_that_is_not_wanted_is_any(started):
    anything = started(split=Split.ANY)[0].level
    np.testing.assert_array_equal(started(wanted=False, split=Split.TEST)[0].level, anything)


def test_a_row_of_the_file_is_taken_whatever_its_split(started):
    pack = started(split=Split.TRAIN)[0].level[:3]
    for row, expected in ((0, 0), (2, 2), (4, 1)):
        states, found, _ = started(pack, level=row, split=Split.TEST)
        assert np.asarray(found).all()
        np.testing.assert_array_equal(states.level, np.broadcast_to(pack[expected], states.level.shape))
    drawn = np.asarray(started(pack, split=Split.TRAIN)[0].level)
    assert {level.tobytes() for level in drawn} <= {level.tobytes() for level in np.asarray(pack)}
