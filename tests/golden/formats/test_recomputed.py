"""What is not stored with a run but computed again by `view`, `replay` and `seen`: it may not change for old runs."""

import hashlib
import json

import jax
import numpy as np
import pytest
from paths import GOLDEN

import envs_jax
from agentrl_jax.rollout.trajectory import TRUNCATIONS
from agentrl_jax.setup import run_keys
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


def test_purposes_of_keys_and_codes_of_records_are_those_of_earlier_runs():
    names = ("INIT", "DEMONSTRATIONS", "IMITATION", "ROLLOUT", "UPDATE", "MEASUREMENT", "ROLL_BACK", "DAGGER")
    assert [getattr(run_keys, name) for name in names] == [*range(8)]
    assert TRUNCATIONS[:3] == ("turns", "actions", "context")
    assert STORED["splits"] == {split.name: int(split) for split in Split}
    key = jax.random.key(3)
    derived = {
        "after_roll_backs": run_keys.after_roll_backs(key, 2),
        "of_iteration": run_keys.of_iteration(key, run_keys.UPDATE, 5),
        "of_evaluation": run_keys.of_evaluation(123, 2),
    }
    assert {name: jax.random.key_data(found).tolist() for name, found in derived.items()} == STORED["keys"]


@pytest.mark.parametrize("name", sorted({*STORED["environments"]} - {LARGE}))
def test_levels_their_splits_and_their_hashes_are_those_of_earlier_runs(name):
    assert digests(name) == STORED["environments"][name]


@pytest.mark.nightly
def test_larger_levels_are_those_of_earlier_runs():
    assert digests(LARGE) == STORED["environments"][LARGE]
