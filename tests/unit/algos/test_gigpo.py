import algos_oracles as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.algos import gigpo

EPISODES, TURNS = 6, 4

advantages = jax.jit(gigpo.turn_advantages, static_argnames=("history", "normalize_std"))
hash_tokens = jax.jit(gigpo.hash_tokens)


@st.composite
def plays(draw):
    cells = EPISODES * TURNS
    states = np.array(draw(st.lists(st.integers(0, 2), min_size=cells, max_size=cells))).reshape(EPISODES, TURNS)
    returns = np.array(draw(st.lists(st.integers(-8, 8), min_size=cells, max_size=cells)), np.float32) / 8
    played = np.array(draw(st.lists(st.integers(0, TURNS), min_size=EPISODES, max_size=EPISODES)))
    return returns.reshape(EPISODES, TURNS), states, np.arange(TURNS) < played[:, None]


def as_hash(states):
    return np.stack([states, 7 - states], axis=-1).astype(np.uint32)


@pytest.mark.parametrize(("history", "power"), [(0, 1.0), (1, 1.0), (2, 0.0), (3, 2.0)])
@pytest.mark.parametrize("normalize_std", [True, False])
@oracle.PROPERTY
@given(plays())
def test_turns_are_compared_within_their_state_and_history(normalize_std, history, power, play):
    returns, states, counts = play
    group = np.array([0, 0, 0, 1, 1, 1])
    found = advantages(
        returns, as_hash(states), group, counts, history=history, history_power=power, normalize_std=normalize_std
    )
    expected = oracle.turn_advantages(returns, states.tolist(), group, counts, history, power, normalize_std)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_returns_from_each_turn_on_are_discounted_by_turn():
    found = gigpo.returns_to_go(jnp.array([[1.0, 2.0, 4.0], [0.0, 0.0, 8.0]]), 0.5)
    np.testing.assert_array_equal(found, [[3.0, 4.0, 4.0], [2.0, 4.0, 8.0]])


def test_hashes_tell_texts_apart_and_do_not_see_padding():
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, 50, (20_000, 6)).astype(np.int32)
    length = draw.integers(0, 7, 20_000)
    found = np.asarray(hash_tokens(tokens, np.arange(6) < length[:, None]))
    texts = [tuple(row[:n]) for row, n in zip(tokens.tolist(), length)]
    assert len({tuple(code) for code in found.tolist()}) == len(set(texts))
    # Each half alone distinguishes them about as well as 32 bits can.
    for half in (0, 1):
        assert len(set(found[:, half].tolist())) > len(set(texts)) - 5
    wide = np.pad(tokens, ((0, 0), (0, 3)), constant_values=9)
    padded = np.asarray(hash_tokens(wide, np.arange(9) < length[:, None]))
    np.testing.assert_array_equal(found, padded)
