"""Levels in other colors: the same game in other words."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from babyai_games import UPSTREAM

from envs_jax.babyai import codes, colors, items, macros
from envs_jax.babyai.env import PrimitiveBabyAI
from envs_jax.babyai.policies import random_policy

ROUNDS = 12
INDICES = tuple(range(40))
KEY = jax.random.key(5)
COLOR = re.compile("|".join(codes.COLOR_NAMES))


def played(env):
    """Listed actions at random on an item of every level, and the same actions on their images."""
    params = env.default_params

    @jax.jit
    def play(levels, actions, sampled):
        def one(level, actions, key):
            _, state = env.reset_to_level(level, params)

            def step(state, given):
                key, action = given
                action = jnp.where(sampled, random_policy(key, env.candidates(state)), action)
                _, after, reward, done, _ = env.step_env(key, state, action, params)
                return after, (action, reward, done, after.score, env.describe(after, params))

            _, found = jax.lax.scan(step, state, (jax.random.split(key, ROUNDS), actions))
            return env.describe(state, params), found

        return jax.vmap(one)(levels, actions, jax.random.split(KEY, len(levels)))

    levels = items.load(INDICES)
    first, found = jax.device_get(play(levels, np.zeros((len(levels), ROUNDS), np.int32), True))
    images, plans = colors.permute(env, levels, list(found[0]), KEY)
    others = jax.device_get(play(images, np.stack(plans), False))
    return (first, *found), (others[0], *others[1])


def test_everything_but_the_names_of_colors_is_equal():
    env = UPSTREAM
    (first, actions, *numbers, texts), (other_first, other_actions, *other_numbers, other_texts) = played(env)
    for number, other in zip(numbers, other_numbers, strict=True):
        np.testing.assert_array_equal(number, other)
    assert np.max(numbers[-1]) > 0.5
    assert (actions != other_actions).any()
    assert ((actions < macros.STARTS[0]) == (other_actions < macros.STARTS[0])).all()
    different = 0
    for row, of_level in enumerate(colors.permutations(len(INDICES), KEY)):
        new = {name: codes.COLOR_NAMES[of_level[number]] for number, name in enumerate(codes.COLOR_NAMES)}
        for pieces, other in [(first[row], other_first[row]), *zip(texts[row], other_texts[row], strict=True)]:
            text, image = ("".join(env.pieces[piece] for piece in x if piece >= 0) for x in (pieces, other))
            assert image == COLOR.sub(lambda found, new=new: new[found[0]], text), INDICES[row]
            different += image != text
    assert different > len(INDICES)


def test_actions_that_name_no_color_stay():
    ids = np.array([-1, -2, macros.DROP_IT, macros.CHECK, macros.STARTS[0], macros.STARTS[-1] - 1], np.int32)
    turned = np.roll(np.arange(codes.COLORS), 1)
    found, names = colors.actions(ids, turned), macros.action_names()
    assert (found[:4] == ids[:4]).all()
    assert [names[x] for x in ids[4:]] == ["pickup red key 1", "toggle and go through grey locked door 9"]
    assert [names[x] for x in found[4:]] == ["pickup grey key 1", "toggle and go through yellow locked door 9"]
    assert (colors.actions(found, np.argsort(turned)) == ids).all()


def test_primitive_actions_name_nothing():
    env = PrimitiveBabyAI(items.SHAPE, mode="upstream")
    plan = np.array([0, 2, 5], np.int32)
    levels = items.load(INDICES[:1])
    images, (same,) = colors.permute(env, levels, [plan], KEY)
    assert (same == plan).all()
    assert images.shape == levels.shape
