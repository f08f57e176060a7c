"""Writes episodes.json: levels of a few keys, and what twelve random actions make of them.

    python tests/golden/envs/make_golden.py

Run it where a change of an environment is meant; tests/unit/envs_jax/test_recorded_episodes.py reads the file. All
numbers are integers, or sums of rewards that float32 holds, so that they are the same on every machine.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from envs_jax.environment import hash_integers

GOLDEN = Path(__file__).with_name("episodes.json")
NAMES = ("SimpleSokoban", "FrozenLake", "Bandit")
KEYS, ACTIONS = 24, 12


def episodes(name: str) -> dict[str, Any]:
    """By key: hashes of the level and of all observations, the return, and the number of effective actions."""
    env, params = envs_jax.make(name)

    def play(key):
        obs, state = env.reset_env(jax.random.fold_in(key, 0), params)

        def step(state, number):
            keys = jax.random.split(jax.random.fold_in(key, number))
            action = jax.random.randint(keys[0], (), 0, env.num_actions)
            obs, state, reward, done, info = env.step_env(keys[1], state, action, params)
            return state, (hash_integers(obs), reward, done, info["action_is_effective"])

        _, (seen, rewards, done, moved) = jax.lax.scan(step, state, jnp.arange(1, ACTIONS + 1))
        return hash_integers(obs), hash_integers(seen), jnp.sum(rewards), jnp.sum(done), jnp.sum(moved)

    found = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), KEYS))
    level, seen, returns, done, moved = map(np.asarray, found)
    return {
        "level": level[:, 0].tolist(),
        "seen": seen[:, 0].tolist(),
        "return": [round(float(x), 3) for x in returns],
        "done": done.tolist(),
        "moved": moved.tolist(),
    }


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: episodes(name) for name in NAMES}) + "\n")
