import algos_oracles as oracle
import hypothesis.extra.numpy as hnp
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.algos import rewards

EPISODES, SEGMENTS, TURNS, LENGTH = 12, 5, 3, 16

normalize = jax.jit(rewards.normalize, static_argnums=(2, 3))
place = jax.jit(rewards.place_rewards, static_argnums=(2, 3))
eighths = st.integers(-24, 80).map(lambda n: n / 8)
scores = hnp.arrays(np.float32, EPISODES, elements=eighths)
groups = hnp.arrays(np.int32, EPISODES, elements=st.integers(0, SEGMENTS - 1))


@pytest.mark.parametrize("method", ["identity", "mean", "mean_std", "asym_clip"])
@oracle.PROPERTY
@given(scores, groups)
def test_normalization_equals_the_reference(method, score, group):
    expected = score.astype(np.float64)
    if method != "identity":
        for number in set(group.tolist()):
            members = group == number
            expected[members] = oracle.normalized(score[members], method != "mean")
    if method == "asym_clip":
        expected = np.clip(expected, -1, 3)
    np.testing.assert_allclose(normalize(score, group, SEGMENTS, method), expected, atol=1e-5)


def test_asymmetric_clip_bounds_both_sides():
    for outlier, bound in ((9.0, 3.0), (-9.0, -1.0)):
        score = np.append(np.zeros(EPISODES - 1, np.float32), np.float32(outlier))
        assert normalize(score, np.zeros(EPISODES, np.int32), SEGMENTS, "asym_clip")[-1] == bound


@pytest.mark.parametrize("method", ["mean", "mean_std", "asym_clip"])
def test_equal_scores_and_episodes_alone_in_their_group_become_exactly_zero(method):
    score = np.array([0.1] * 7 + [1e4 / 3] * 3 + [5.0, -2.0], np.float32)
    group = np.array([0] * 7 + [1] * 3 + [2, 4], np.int32)
    assert not np.asarray(normalize(score, group, SEGMENTS, method)).any()


@oracle.PROPERTY
@given(
    hnp.arrays(np.float32, (2, TURNS), elements=eighths),
    st.lists(st.lists(st.one_of(st.none(), st.integers(1, 5)), min_size=TURNS, max_size=TURNS), min_size=2, max_size=2),
)
def test_rewards_land_on_the_last_sampled_tokens(turn_rewards, steps):
    turn_last = np.full((2, TURNS), -1, np.int32)
    for row in range(2):
        position = -1
        for turn, step in enumerate(steps[row]):
            if step is not None:
                position += step
                turn_last[row, turn] = position
    by_turn, by_episode = np.zeros((2, 2, LENGTH))
    for row in range(2):
        for turn in range(TURNS):
            if turn_last[row, turn] >= 0:
                by_turn[row, turn_last[row, turn]] += turn_rewards[row, turn]
        if max(turn_last[row]) >= 0:
            by_episode[row, max(turn_last[row])] = sum(turn_rewards[row])
    np.testing.assert_array_equal(place(turn_rewards, turn_last, LENGTH, "turn"), by_turn)
    np.testing.assert_array_equal(place(turn_rewards, turn_last, LENGTH, "episode"), by_episode)


def test_overlong_responses_pay_from_the_buffer_on():
    """Yu et al. 2025, eq. 13 with the paper's numbers: zero up to 16,384 of 20,480, half at 18,432, then full."""
    length = np.array([0, 16384, 18432, 20480])
    np.testing.assert_allclose(rewards.overlong_share(length, 20480, 0.2), [0.0, 0.0, 0.5, 1.0], atol=1e-4)
    np.testing.assert_array_equal(rewards.overlong_share(length, 20480, 0.0), np.zeros(4))
