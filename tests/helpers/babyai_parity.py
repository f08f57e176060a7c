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
"""Played at a time."""


@functools.cache
def player():
    """A function that plays sequences of actions, and returns what is shown at the start and after each."""
    env = UPSTREAM
    params = env.default_params.replace(max_steps_in_episode=jnp.int32(ROUNDS))

    def shown(state):
        return {
            "text": env.describe(state, params),
            "view": state.view,
            "reward": state.reward,
            "score": state.score,
            "done": state.terminated,
            "steps": state.world.steps,
        }

    def one(level, actions):
        _, first = env.reset_to_level(level, params)

        def step(state, action):
            _, after, _, _, info = env.step_env(jax.random.key(0), state, action, params)
            return after, {**shown(after), "strict": info["strict_success"]}

        return shown(first), jax.lax.scan(step, first, actions)[1]

    return jax.jit(jax.vmap(one))


def text_of(env, ids):
    return "".join(env.pieces[i] for i in ids if i >= 0)


def check_sequences(rows):
    """Fails unless the recorded sequences of some rows are played as the original did."""
    env, play = UPSTREAM, player()
    traces, packed = recorded.read("traces"), recorded.all_levels()
    texts = recorded.action_texts()
    starts = traces["sequence_start"]
    full = {step: recorded.full_texts()[len(traces["text_item"]) + i] for i, step in enumerate(traces["text_step"])}
    first_full = {item: recorded.full_texts()[i] for i, item in enumerate(traces["text_item"])}
    for begin in range(0, len(rows), SEQUENCES):
        chunk = rows[begin : begin + SEQUENCES]
        padded = np.pad(chunk, (0, SEQUENCES - len(chunk)), mode="edge")
        actions = np.full((SEQUENCES, ROUNDS), -1, np.int32)
        for slot, row in enumerate(chunk):
            sent = traces["action"][starts[row] : starts[row + 1]]
            actions[slot, : len(sent)] = [recorded.action_id(texts[i]) for i in sent]
        items = traces["sequence_item"][padded]
        first, after = jax.device_get(play(jnp.asarray(packed[items]), jnp.asarray(actions)))
        for slot, row in enumerate(chunk):
            item = items[slot]
            where = f"item {traces['index'][item]}, sequence {row}"
            found = text_of(env, first["text"][slot])
            if item in first_full:
                assert found == first_full[item], where
            assert (recorded.digest(found.encode()) == traces["first_text"][item]).all(), f"{where}: {found}"
            image = recorded.minigrid_image(first["view"][slot])
            assert (recorded.digest(image) == traces["first_image"][item]).all(), where
            for number, step in enumerate(range(starts[row], starts[row + 1])):
                at = f"{where}, step {number}, {texts[traces['action'][step]]!r}"
                found = text_of(env, after["text"][slot, number])
                if step in full:
                    assert found == full[step], at
                assert (recorded.digest(found.encode()) == traces["text"][step]).all(), f"{at}: {found}"
                image = recorded.minigrid_image(after["view"][slot, number])
                assert (recorded.digest(image) == traces["image"][step]).all(), at
                assert after["steps"][slot, number] == traces["step_count"][step], at
                assert after["done"][slot, number] == traces["done"][step], at
                assert after["strict"][slot, number] == traces["done"][step], at
                for name in ("reward", "score"):
                    assert after[name][slot, number] == pytest.approx(traces[name][step], abs=1e-5), f"{at}: {name}"
