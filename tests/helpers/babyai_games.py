"""Environments of BabyAI whose compiled programs tests share, because compiling one step takes seconds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from babyai_fixtures import action_id

from envs_jax.babyai import items
from envs_jax.babyai.env import BabyAI
from envs_jax.babyai.levels import Shape

LARGE = BabyAI(items.SHAPE)
UPSTREAM = BabyAI(items.SHAPE, mode="upstream")
SMALL = BabyAI(Shape(9, 9, 8))
PARAMS = SMALL.default_params
RED_BALLS = tuple(index for index in items.stored_indices() if items.number_of(index) == 2)
"""Stored items of one room, in which the agent has to go to the red ball."""


def small_items(indices):
    shape, full = SMALL.shape, items.load(indices)
    header = np.zeros((len(full), (shape.rows - shape.height) * shape.width), np.int8)
    header[:, : shape.header] = full[:, items.SHAPE.height :].reshape(len(full), -1)[:, : shape.header]
    return np.concatenate([full[:, : shape.height, : shape.width], header.reshape(len(full), -1, shape.width)], axis=1)


_compiled = functools.partial(jax.jit, static_argnums=0)
reset = _compiled(lambda env, level: env.reset_to_level(level, env.default_params)[1])
_step = _compiled(lambda env, *of: env.step_env(jax.random.key(0), *of, env.default_params)[1:])
_candidates = _compiled(lambda env, state: env.candidates(state))
_describe = _compiled(lambda env, state: env.describe(state, env.default_params))


def step(env, state, action):
    return _step(env, state, jnp.int32(action_id(action) if isinstance(action, str) else action))


def listed(env, state):
    return [env.actions[action] for action in np.asarray(_candidates(env, state)).tolist() if action >= 0]


def text(env, state):
    return "".join(env.pieces[piece] for piece in np.asarray(_describe(env, state)).tolist() if piece >= 0)


def walk(env, level, actions):
    states = [reset(env, level)]
    for action in actions:
        states.append(step(env, states[-1], action)[0])
    return [(state, text(env, state)) for state in states]
