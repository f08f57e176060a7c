"""BabyAI against the play of the original, as recorded: text, image, reward, score."""

import functools

import babyai_fixtures as recorded
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from babyai_games import UPSTREAM

from envs_jax.babyai import items, physics
from envs_jax.babyai import mission as missions
from envs_jax.babyai.env import PrimitiveBabyAI
from envs_jax.babyai.view import look

ROUNDS = 20
AT_ONCE = 360


@functools.cache
def player():
    env = UPSTREAM
    params = env.default_params.replace(max_steps_in_episode=jnp.int32(ROUNDS))

    def shown(state):
        facts = {"reward": state.reward, "score": state.score, "done": state.terminated, "steps": state.world.steps}
        return {"text": env.describe(state, params), "view": state.view, **facts}

    def one(level, actions):
        _, first = env.reset_to_level(level, params)

        def step(state, action):
            _, after, _, _, info = env.step_env(jax.random.key(0), state, action, params)
            return after, {**shown(after), "strict": info["strict_success"]}

        return shown(first), jax.lax.scan(step, first, actions)[1]

    return jax.jit(jax.vmap(one))


def text_of(env, ids):
    return "".join(env.pieces[i] for i in ids if i >= 0)


def sent(row):
    traces, texts = recorded.read("traces"), recorded.action_texts()
    begin, end = traces["sequence_start"][row : row + 2]
    ids = [recorded.action_id(texts[number]) for number in traces["action"][begin:end]]
    return np.pad(np.array(ids, np.int32), (0, ROUNDS - len(ids)), constant_values=-1)


def play(levels, actions):
    rows = np.minimum(np.arange(AT_ONCE), len(levels) - 1)
    return jax.device_get(player()(jnp.asarray(levels[rows]), jnp.asarray(np.stack(actions)[rows])))


def check_sequences(rows):
    traces, packed = recorded.read("traces"), recorded.all_levels()
    texts, starts = recorded.action_texts(), traces["sequence_start"]

    def check_shown(shown, index, digest, image, where):
        found = text_of(UPSTREAM, shown["text"][index])
        assert (recorded.digest(found.encode()) == digest).all(), f"{where}: {found}"
        assert (recorded.digest(recorded.minigrid_image(shown["view"][index])) == image).all(), where

    for begin in range(0, len(rows), AT_ONCE):
        chunk = rows[begin : begin + AT_ONCE]
        items = traces["sequence_item"][chunk]
        first, after = play(packed[items], [sent(row) for row in chunk])
        for slot, row in enumerate(chunk):
            item = items[slot]
            where = f"item {traces['index'][item]}, sequence {row}"
            check_shown(first, slot, traces["first_text"][item], traces["first_image"][item], where)
            for number, step in enumerate(range(starts[row], starts[row + 1])):
                at, one = f"{where}, step {number}, {texts[traces['action'][step]]!r}", (slot, number)
                check_shown(after, one, traces["text"][step], traces["image"][step], at)
                assert after["steps"][one] == traces["step_count"][step], at
                assert after["done"][one] == after["strict"][one] == traces["done"][step], at
                for name in ("reward", "score"):
                    assert after[name][one] == pytest.approx(traces[name][step], abs=1e-5), f"{at}: {name}"


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
