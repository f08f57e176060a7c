from functools import partial

import algos_oracles as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algos_oracles import LENGTH, PROPERTY, ROWS, discounts, group_returns, masks, numbers
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.algos import advantages, groups

gae = jax.jit(advantages.gae)
bi_level = jax.jit(advantages.bi_level_gae)
turn_gae = jax.jit(advantages.turn_gae)
group_advantages = jax.jit(groups.group_advantages, static_argnames="normalize_std")
whiten = jax.jit(advantages.whiten)


def padded(row, dtype=np.float32):
    """A full-size batch whose first row is `row`, of ten positions; the rest is zero."""
    full = np.zeros((ROWS, LENGTH), dtype)
    full[0, : len(row)] = row
    return full


FIRST_TEN = padded([True] * 10, bool)


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [
        (1.0, 1.0, [1.85, 1.75, 1.65, 1.55, 1.45, 0.4, 0.3, 0.2, 0.1, 0.0]),
        (1.0, 0.9, [1.2952, 1.3281, 1.3645, 1.4050, 1.45, 0.3439, 0.2710, 0.1900, 0.1, 0.0]),
        (0.99, 0.95, [1.4877, 1.4776, 1.4679, 1.4587, 1.45, 0.3349, 0.2572, 0.1756, 0.09, 0.0]),
    ],
)
def test_bi_level_gae_gives_the_published_vectors(gamma, lam, expected):
    rewards = padded([0, 0, 0, 0, 1, 0, 0, 0, 0, 1])
    values = padded(np.arange(1, 11) / 10)
    found, returns = bi_level(rewards, values, FIRST_TEN, rewards > 0, gamma=gamma, lam=lam, turn_gamma=0.95)
    np.testing.assert_allclose(found, padded(expected), atol=6e-5)
    np.testing.assert_allclose(returns, np.where(FIRST_TEN, padded(expected) + values, 0), atol=6e-5)
    if lam == 1.0:
        white = [1.1880, 1.0596, 0.9311, 0.8027, 0.6743, -0.6743, -0.8027, -0.9311, -1.0596, -1.1880]
        np.testing.assert_allclose(whiten(found, FIRST_TEN), padded(white), atol=6e-5)


@pytest.mark.parametrize(
    ("lam", "expected"),
    [
        (1.0, [0.9, 0.8, 0.7, 1, 1, 0.4, 0.3, 0.2, 1, 0]),
        (0.9, [0.5007, 0.4452, 0.3836, 0.7595, 0.8439, 0.271, 0.19, 0.1, 1, 0]),
    ],
)
def test_gae_over_every_position_gives_the_published_vectors(lam, expected):
    rewards = padded([0] * 9 + [1])
    values = padded([0.1, 0.2, 0.3, 0, 0, 0.6, 0.7, 0.8, 0, 1])
    everywhere, _ = gae(rewards, values, FIRST_TEN, gamma=1.0, lam=lam)
    np.testing.assert_allclose(everywhere, padded(expected), atol=6e-5)


@PROPERTY
@given(numbers, numbers, masks, discounts, discounts)
def test_gae_equals_the_sum_over_later_errors(rewards, values, mask, gamma, lam):
    found = gae(rewards, values, mask, gamma=gamma, lam=lam)
    np.testing.assert_allclose(found, oracle.gae(rewards, values, mask, gamma, lam), atol=5e-4)


@PROPERTY
@given(numbers, numbers, masks, masks, discounts, discounts, discounts)
def test_bi_level_gae_equals_the_two_passes(rewards, values, mask, turn_end, gamma, lam, turn_gamma):
    found = bi_level(rewards, values, mask, turn_end, gamma=gamma, lam=lam, turn_gamma=turn_gamma)
    np.testing.assert_allclose(
        found, oracle.bi_level_gae(rewards, values, mask, turn_end, gamma, lam, turn_gamma), atol=5e-4
    )


@PROPERTY
@given(numbers, numbers, masks, masks, discounts, discounts)
def test_turn_gae_equals_one_step_a_turn(rewards, values, mask, turn_end, gamma, lam):
    found = turn_gae(rewards, values, mask, turn_end, gamma=gamma, lam=lam)
    np.testing.assert_allclose(found, oracle.turn_gae(rewards, values, mask, turn_end, gamma, lam), atol=5e-4)


@PROPERTY
@given(numbers, numbers, masks, discounts, discounts)
def test_turns_of_one_token_make_the_levels_one(rewards, values, mask, gamma, lam):
    every = np.ones_like(mask)
    of_tokens = gae(np.where(mask, rewards, 0), values, mask, gamma=gamma, lam=lam)
    np.testing.assert_allclose(turn_gae(rewards, values, mask, every, gamma=gamma, lam=lam), of_tokens, atol=5e-4)
    two = bi_level(np.where(mask, rewards, 0), values, mask, every, gamma=0.3, lam=lam, turn_gamma=gamma)
    np.testing.assert_allclose(two, of_tokens, atol=5e-4)


@PROPERTY
@given(numbers, numbers, masks, st.integers(0, LENGTH - 1))
def test_splitting_a_turn_in_two_leaves_the_returns_before_it(rewards, values, mask, where):
    """Without discount the return of a token is the sum of later rewards, however they are split into turns.

    Rewards are at turn ends; a reward inside a turn would stay inside it.
    """
    mask[:, where] = mask[:, -1] = True  # a turn can only end at a sampled token
    last = np.zeros_like(mask)
    last[:, -1] = True
    split = last.copy()
    split[:, where] = True
    rewards = np.where(split, rewards, 0)
    options = {"gamma": 1.0, "lam": 1.0, "turn_gamma": 1.0}
    whole, parted = (bi_level(rewards, values, mask, ends, **options)[1] for ends in (last, split))
    to_come = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1]
    before = mask & (np.arange(LENGTH) <= where)
    np.testing.assert_allclose(whole, np.where(mask, to_come, 0), atol=5e-4)
    np.testing.assert_allclose(np.where(before, parted, 0), np.where(before, to_come, 0), atol=5e-4)


@pytest.mark.parametrize("estimator", ["bi_level", "turn"])
def test_advantages_move_as_little_as_the_rewards(estimator):
    """The published bi-level estimator treats every nonzero reward as a turn end, and is discontinuous."""
    values = padded([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    mask, ends = padded([True] * 6, bool), padded([False, False, True, False, False, True], bool)

    def found(first, last):
        rewards = padded([0, 0, first, 0, 0, last])
        if estimator == "turn":
            return np.asarray(turn_gae(rewards, values, mask, ends, gamma=0.9, lam=0.95)[0])
        return np.asarray(bi_level(rewards, values, mask, ends, gamma=0.9, lam=0.95, turn_gamma=0.95)[0])

    np.testing.assert_allclose(found(0.0, 1.0), found(1e-6, 1.0), atol=1e-5)
    np.testing.assert_allclose(found(0.0, 0.0), found(0.0, 1e-6), atol=1e-5)
    assert np.isfinite(found(0.0, 0.0)).all()


@PROPERTY
@given(numbers, masks, discounts, discounts, discounts)
def test_bi_level_gae_without_any_reward_or_turn_end_is_ordinary(values, mask, gamma, lam, turn_gamma):
    nothing = np.zeros_like(values)
    everywhere = np.ones_like(mask)
    found = bi_level(nothing, values, mask, everywhere, gamma=gamma, lam=lam, turn_gamma=turn_gamma)
    assert np.isfinite(np.asarray(found)).all()
    one_level = bi_level(nothing, values, mask, ~everywhere, gamma=gamma, lam=lam, turn_gamma=turn_gamma)
    np.testing.assert_allclose(one_level, gae(nothing, values, mask, gamma=gamma, lam=lam), atol=1e-6)


@PROPERTY
@given(numbers, numbers, masks, discounts, discounts)
def test_positions_between_and_after_the_sampled_ones_change_nothing(rewards, values, mask, gamma, lam):
    packed = np.argsort(~mask, axis=1, kind="stable")
    move = partial(np.take_along_axis, indices=packed, axis=1)
    # Values outside the mask are not read: NaN there does not spread.
    rewards, values = (np.where(mask, x, np.nan).astype(np.float32) for x in (rewards, values))
    turn_end = values > 0
    settings = {"gamma": gamma, "lam": lam}
    for spread, tight in (
        (gae(rewards, values, mask, **settings), gae(move(rewards), move(values), move(mask), **settings)),
        (
            bi_level(rewards, values, mask, turn_end, **settings, turn_gamma=0.95),
            bi_level(move(rewards), move(values), move(mask), move(turn_end), **settings, turn_gamma=0.95),
        ),
    ):
        np.testing.assert_array_equal(move(np.asarray(spread[0])), tight[0])
        np.testing.assert_array_equal(move(np.asarray(spread[1])), tight[1])


@PROPERTY
@given(numbers, numbers, masks)
def test_without_discount_gae_telescopes(rewards, values, mask):
    rewards = np.where(mask, rewards, 0)
    still_to_come = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1]
    found = gae(rewards, values, mask, gamma=1.0, lam=1.0)
    np.testing.assert_allclose(found[1], np.where(mask, still_to_come, 0), atol=2e-4)
    np.testing.assert_allclose(found[0], np.where(mask, still_to_come - values, 0), atol=2e-4)


@pytest.mark.parametrize("normalize_std", [True, False])
@PROPERTY
@given(group_returns, st.randoms(use_true_random=False))
def test_group_advantages_equal_the_reference_and_move_with_permutations(normalize_std, scores, random):
    """Also if some members are not valid, for any scores of theirs."""
    valid = np.array([[random.random() < 0.7 for _ in row] for row in scores])
    found = np.asarray(group_advantages(np.where(valid, scores, np.nan), valid, normalize_std=normalize_std))
    assert not found[~valid].any()
    for row, scored, counts in zip(found, scores, valid):
        if counts.any():
            np.testing.assert_allclose(row[counts], oracle.normalized(scored[counts], normalize_std), atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 0, atol=1e-4)
    groups = random.sample(range(scores.shape[0]), scores.shape[0])
    members = random.sample(range(scores.shape[1]), scores.shape[1])
    mixed = group_advantages(scores[groups][:, members], valid[groups][:, members], normalize_std=normalize_std)
    np.testing.assert_allclose(mixed, found[groups][:, members], atol=1e-5)


@pytest.mark.parametrize("normalize_std", [True, False])
def test_a_group_without_differences_has_advantages_of_exactly_zero(normalize_std):
    # Sums of these numbers are rounded: their mean is not the number itself.
    equal = np.repeat(np.array([[0.1], [-3.3], [1e4 / 3], [1e-7], [10.9]], np.float32), 7, axis=1)
    for valid in (np.ones(equal.shape, bool), np.tile(np.arange(7) % 3 > 0, (5, 1))):
        assert not np.asarray(group_advantages(equal, valid, normalize_std=normalize_std)).any()
    alone = np.array([[0.5], [np.float32(1e6)]], np.float32)
    found = group_advantages(alone, np.ones((2, 1), bool), normalize_std=normalize_std)
    np.testing.assert_array_equal(found, np.zeros((2, 1)))


@PROPERTY
@given(numbers, masks)
def test_whitening_equals_the_reference(x, mask):
    found = np.asarray(whiten(np.where(mask, x, np.nan), mask))
    assert not found[~mask].any()
    expected = oracle.whiten(x, mask)
    np.testing.assert_allclose(found, expected, atol=1e-3 * max(1.0, np.abs(expected).max()))


def test_whitening_of_a_constant_a_single_token_and_nothing_is_zero():
    x = np.full((ROWS, LENGTH), 0.3, np.float32)
    single = np.zeros((ROWS, LENGTH), bool)
    single[2, 5] = True
    for mask in (np.ones_like(single), single, np.zeros_like(single)):
        assert not np.asarray(whiten(x, mask)).any()


def test_estimators_take_gradients_and_batches():
    values = jnp.ones((2, ROWS, LENGTH))
    mask = jnp.zeros((2, ROWS, LENGTH), bool)

    def total(values):
        return jnp.sum(jax.vmap(partial(advantages.gae, gamma=0.9, lam=0.9))(values, values, mask)[0])

    assert not np.asarray(jax.grad(total)(values)).any()


@pytest.mark.parametrize("estimator", ["gae", "turn_gae", "bi_level_gae"])
@PROPERTY
@given(numbers, numbers, masks, masks, st.data())
def test_an_episode_that_was_cut_off_goes_on_with_its_final_value(estimator, rewards, values, mask, ends, data):
    """As if one more turn, of one token, had that value and that reward."""
    final = data.draw(numbers)[:, 0]
    gamma, lam, turn_gamma = (data.draw(discounts) for _ in range(3))
    last = np.where(mask.any(axis=1), LENGTH - 1 - np.argmax(mask[:, ::-1], axis=1), -1)
    ends = mask & (ends | (np.arange(LENGTH) == last[:, None]))
    rewards = np.where(mask, rewards, 0.0).astype(np.float32)
    longer = [
        np.concatenate([x, one[:, None].astype(x.dtype)], axis=1)
        for x, one in ((rewards, final), (values, final), (mask, final == final), (ends, final == final))
    ]
    if estimator == "gae":
        found = gae(rewards, values, mask, gamma=gamma, lam=lam, final_value=final)
        expected = oracle.gae(*longer[:3], gamma, lam)
    elif estimator == "turn_gae":
        found = turn_gae(rewards, values, mask, ends, gamma=gamma, lam=lam, final_value=final)
        expected = oracle.turn_gae(*longer, gamma, lam)
    else:
        numbers_of = {"gamma": gamma, "lam": lam, "turn_gamma": turn_gamma}
        found = bi_level(rewards, values, mask, ends, **numbers_of, final_value=final)
        expected = oracle.bi_level_gae(*longer, gamma, lam, turn_gamma)
    for have, want in zip(found, expected):
        np.testing.assert_allclose(have, want[:, :-1], atol=1e-4)
