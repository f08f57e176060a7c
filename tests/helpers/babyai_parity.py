"""Plays recorded sequences of actions and compares everything that is shown with the original's play."""

import functools

import babyai_fixtures as recorded
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from babyai_games import UPSTREAM

ROUNDS = 20
SEQUENCES = 360


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
    rows = np.minimum(np.arange(SEQUENCES), len(levels) - 1)
    return jax.device_get(player()(jnp.asarray(levels[rows]), jnp.asarray(np.stack(actions)[rows])))


def check_sequences(rows):
    traces, packed = recorded.read("traces"), recorded.all_levels()
    texts, starts = recorded.action_texts(), traces["sequence_start"]

    def check_shown(shown, index, digest, image, where):
        found = text_of(UPSTREAM, shown["text"][index])
        assert (recorded.digest(found.encode()) == digest).all(), f"{where}: {found}"
        assert (recorded.digest(recorded.minigrid_image(shown["view"][index])) == image).all(), where

    for begin in range(0, len(rows), SEQUENCES):
        chunk = rows[begin : begin + SEQUENCES]
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
