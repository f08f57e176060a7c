"""BabyAI against the play of the original, as recorded: text, image, reward, score."""

import babyai_fixtures as recorded
import jax
import jax.numpy as jnp
import numpy as np
from babyai_games import UPSTREAM
from babyai_parity import check_sequences

from envs_jax.babyai import mission as missions
from envs_jax.babyai import physics
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
