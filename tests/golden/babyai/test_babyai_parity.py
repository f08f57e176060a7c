"""BabyAI against the play of the original, as recorded: text, image, reward, score."""

import babyai_fixtures as recorded
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from babyai_games import UPSTREAM
from babyai_parity import check_sequences, text_of

from envs_jax.babyai import items, physics
from envs_jax.babyai import mission as missions
from envs_jax.babyai.env import PrimitiveBabyAI
from envs_jax.babyai.view import look


def test_play_of_every_level_equals_the_original():
    """One seed of each; the nightly test has them all."""
    traces = recorded.read("traces")
    seeds = recorded.read("levels")["seed"][traces["sequence_item"]]
    check_sequences(np.flatnonzero(seeds == 0))


def test_primitive_actions_equal_the_original():
    env = UPSTREAM
    traces, packed = recorded.read("traces"), recorded.all_levels()

    @jax.jit
    @jax.vmap
    def primitive(level, actions):
        _, state = env.reset_to_level(level, env.default_params)

        def step(carry, action):
            world = physics.act(carry[0], action)
            progress, result = missions.check(world, state.mission, carry[1], action)
            pose = jnp.stack([world.x, world.y, world.heading])
            return (world, progress), (look(world), result, pose)

        return state.max_steps, jax.lax.scan(step, (state.world, state.progress), actions)[1]

    actions = traces["primitive_action"].astype(np.int32)
    limit, (views, results, poses) = jax.device_get(primitive(packed[traces["primitive_item"]], actions))
    np.testing.assert_array_equal(poses, traces["primitive_agent"])
    np.testing.assert_array_equal(results != missions.CONTINUE, traces["primitive_terminated"])
    steps = np.arange(1, 61)
    rewards = np.where(results == missions.SUCCESS, 1 - 0.9 * steps / limit[:, None], 0)
    np.testing.assert_allclose(rewards, traces["primitive_reward"], atol=1e-6)
    found = np.array([[recorded.digest(recorded.minigrid_image(v)) for v in row] for row in views])
    np.testing.assert_array_equal(found, traces["primitive_image"])


SEQUENCES = len(recorded.read("traces")["sequence_item"])


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(4))
def test_all_recorded_play_equals_the_original(part):
    check_sequences(np.arange(part, SEQUENCES, 4))


@pytest.mark.nightly
def test_the_environment_with_primitive_actions_equals_the_original_until_the_end():
    """Reward, end and image of the same actions; afterwards nothing changes any more.

    Level 16 is left out, whose strict order of two doors the original fails where it should not.
    """
    env = PrimitiveBabyAI(recorded.SHAPE)
    traces, packed = recorded.read("traces"), recorded.all_levels()
    same = items.number_of(traces["index"][traces["primitive_item"]]) != 16
    traces = {name: traces[name][same] for name in traces if name.startswith("primitive_")}

    @jax.jit
    @jax.vmap
    def play(level, actions):
        _, first = env.reset_to_level(level, env.default_params)

        def step(state, action):
            view, after, reward, terminated, info = env.step_env(jax.random.key(0), state, action, env.default_params)
            over = terminated | env.is_truncated(after, env.default_params)
            return after, (view, reward, terminated, over, info["success"], env.describe(after, env.default_params))

        return jax.lax.scan(step, first, actions)[1]

    actions = traces["primitive_action"].astype(np.int32)
    found = jax.device_get(play(packed[traces["primitive_item"]], actions))
    views, rewards, terminated, over, success, text = found
    steps = np.arange(actions.shape[1])
    last = np.where(over.any(axis=1), over.argmax(axis=1), len(steps))
    before, played = steps < last[:, None], steps <= last[:, None]
    assert success.any(axis=1).sum() > 10
    np.testing.assert_array_equal(terminated & played, traces["primitive_terminated"] & played)
    np.testing.assert_allclose(np.where(played, rewards, 0), np.where(played, traces["primitive_reward"], 0), atol=1e-6)
    assert (rewards[~played] == 0).all()
    found = [recorded.digest(recorded.minigrid_image(view)) for view in views[before]]
    np.testing.assert_array_equal(found, traces["primitive_image"][before])
    shown = text_of(env, text[0, 0])
    assert "Available actions" not in shown
    assert shown.startswith(("In front of you", "You cannot see"))
