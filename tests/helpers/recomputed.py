"""Digests of what is computed again for old runs: levels, their splits and their hashes."""

import hashlib
import json

import jax
import numpy as np
from paths import GOLDEN

import envs_jax
from envs_jax.splits import Split, split_key, split_of_level

STORED = json.loads((GOLDEN / "formats" / "recomputed.json").read_text())
LARGE = "BabyAI-GoToRedBall"
"""It takes long to compile."""


def digests(name):
    env, params = envs_jax.make(name)

    def draw(key):
        state = env.reset_env(key, params)[1]
        trained = split_key(env, key, params, Split.TRAIN)[0]
        level, hashed = env.level_hash(state, params), env.state_hash(state, params)
        return level, hashed, split_of_level(env, state, params), jax.random.key_data(trained)

    found = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 64))
    parts = zip(("level_hash", "state_hash", "split", "split_key"), found, strict=True)
    return {part: hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:16] for part, x in parts}
