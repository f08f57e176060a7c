import algos_oracles as oracle
import jax
import numpy as np
import pytest
from algos_oracles import LENGTH, PROPERTY, ROWS, discounts, masks, numbers
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.algos import advantages

ESTIMATORS = {name: jax.jit(getattr(advantages, name)) for name in ("gae", "turn_gae", "bi_level_gae")}
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
    options = {"gamma": gamma, "lam": lam, "turn_gamma": 0.95}
    found, returns = ESTIMATORS["bi_level_gae"](rewards, values, FIRST_TEN, rewards > 0, **options)
    np.testing.assert_allclose(found, padded(expected), atol=6e-5)
    np.testing.assert_allclose(returns, np.where(FIRST_TEN, padded(expected) + values, 0), atol=6e-5)
    if lam == 1.0:
        white = [1.1880, 1.0596, 0.9311, 0.8027, 0.6743, -0.6743, -0.8027, -0.9311, -1.0596, -1.1880]
        np.testing.assert_allclose(whiten(found, FIRST_TEN), padded(white), atol=6e-5)


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


@pytest.mark.parametrize("cut_off", [False, True])
@pytest.mark.parametrize("name", ESTIMATORS)
@PROPERTY
@given(numbers, numbers, masks, masks, st.data())
def test_estimators_equal_the_reference(name, cut_off, rewards, values, mask, ends, data):
    """An episode that was cut off goes on with its final value, as if one more token had earned it."""
    discount = [data.draw(discounts) for _ in range(3 if name == "bi_level_gae" else 2)]
    options, width = dict(zip(("gamma", "lam", "turn_gamma"), discount)), 3 if name == "gae" else 4
    longer = arrays = (rewards, values, mask, ends)[:width]
    if cut_off:
        last = np.where(mask.any(axis=1), LENGTH - 1 - np.argmax(mask[:, ::-1], axis=1), -1)
        ends = mask & (ends | (np.arange(LENGTH) == last[:, None]))
        arrays = (np.where(mask, rewards, 0.0).astype(np.float32), values, mask, ends)[:width]
        final = data.draw(numbers)[:, :1]
        added = (final, final, final == final, final == final)
        longer = [np.concatenate([x, one], axis=1) for x, one in zip(arrays, added)]
        options["final_value"] = final[:, 0]
    found = ESTIMATORS[name](*arrays, **options)
    for have, want in zip(found, getattr(oracle, name)(*longer, *discount)):
        np.testing.assert_allclose(have, want[:, :LENGTH], atol=5e-4)
