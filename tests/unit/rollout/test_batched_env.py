import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from agentrl_jax.rollout.envs.batched_env import CompiledEnv, EpisodeState, Task, start_state
from agentrl_jax.rollout.trajectory import RolloutSettings
from agentrl_jax.text.grammar import ParsedResponse
from envs_jax.frozen_lake.text import FROZEN, GOAL, START
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


RIGHT, UP = 2, 3


@pytest.fixture(scope="module")
def turn():
    """Function to (state, result) of a turn with 10 actions in all; the goal is three cells to the right, no slips."""
    env, params = envs_jax.make("FrozenLake")
    params = params.replace(success_rate=jnp.float32(1.0))
    level = jnp.full((env.height, env.width), FROZEN).at[0, 0].set(START).at[0, 3].set(GOAL).astype(jnp.int8)
    batched_env = CompiledEnv((Task("lake", env, params, None, None, None),))
    settings = RolloutSettings(jnp.ones(1), jnp.int32(5), jnp.int32(10), (params,))

    @jax.jit
    def step(parsed, used):
        state = EpisodeState(
            task=jnp.int32(0),
            envs=(env.reset_to_level(level, params)[1],),
            noise_key=jax.random.key(0),
            turn=jnp.int32(1),
            used=used,
            no_level=jnp.bool_(False),
        )
        return batched_env._step_row(0, settings, parsed, state)

    def called(actions, valid, parsed, used=0):
        ids = jnp.array(actions + [-1] * (4 - len(actions)), jnp.int32)
        response = ParsedResponse(ids, jnp.int32(valid), jnp.int32(parsed), jnp.bool_(True))
        return step(response, jnp.int32(used))

    return called


@pytest.mark.parametrize(
    ("actions", "valid", "parsed", "used", "done", "flags"),
    [
        ([RIGHT, RIGHT], 2, 2, 0, 2, "valid"),
        ([RIGHT] * 3, 3, 3, 0, 3, "valid terminated success"),
        ([RIGHT] * 3 + [UP], 4, 4, 0, 3, "valid terminated success"),
        ([RIGHT] * 3, 2, 2, 0, 2, "valid"),
        ([RIGHT] * 3, 3, 3, 7, 3, "valid terminated success"),
        ([RIGHT] * 3, 3, 3, 8, 2, "valid truncated"),
        ([RIGHT, UP], 2, 2, 8, 2, "valid truncated"),
        ([RIGHT] * 2, 2, 3, 0, 2, "valid format_error"),
        ([], 0, 1, 0, 0, "format_error"),
        ([], 0, 0, 0, 0, "format_error"),
    ],
)
def test_a_turn_executes_its_valid_actions_until_something_ends_it(turn, actions, valid, parsed, used, done, flags):
    state, result = turn(actions, valid, parsed, used)
    assert result.actions.tolist() == actions[:done] + [-1] * (4 - done)
    assert (int(state.used), int(state.turn), int(state.envs[0].time)) == (used + done, 2, done)
    assert float(result.reward) == ("success" in flags)
    names = ("terminated", "truncated", "success", "format_error", "valid", "failed")
    assert {name for name in names if getattr(result, name)} == set(flags.split())
    moved = float(result.info["action_is_effective"])
    assert moved == (done > 0 and actions[done - 1] == RIGHT)
