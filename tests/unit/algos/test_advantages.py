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


@pytest.mark.parametrize("normalize_std", [True, False])
@PROPERTY
@given(group_returns, st.randoms(use_true_random=False))
def test_group_advantages_equal_the_reference_and_move_with_permutations(normalize_std, scores, random):
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
