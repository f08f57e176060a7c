from functools import partial

import algos_oracles as oracle
import hypothesis.extra.numpy as hnp
import jax
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl_jax.algos import filters
from agentrl_jax.config.fields import OWN, is_own
from agentrl_jax.config.filters import Filter, FractionFilter
from agentrl_jax.config.keys import kind_of, sections_of
from agentrl_jax.errors import BadValue

GROUPS = 8
STDS = np.arange(8, dtype=np.float32)

top_groups = jax.jit(filters.top_groups, static_argnames=("k", "largest"))
chosen = jax.jit(filters.chosen_groups, static_argnames=("rule", "largest", "include_zero"))
top_p = partial(chosen, rule="top_p", largest=True)
group_scores = jax.jit(filters.group_scores, static_argnames="kind")
within_groups = jax.jit(filters.within_groups, static_argnums=2)
# Sixteenths have exact sums; few distinct values produce ties.
few = st.integers(0, 12).map(lambda n: n / 16)


def test_every_kind_of_filter_has_its_function():
    known = {kind for kind in filters.FILTERS if not is_own(kind)}
    assert {kind_of(part) for part in sections_of(Filter)} - {OWN} == known


def test_a_ratio_means_the_number_it_is_written_as():
    for groups in (1, 7, 10, 100, 128):
        for percent in range(1, 100):
            assert FractionFilter(ratio=percent / 100).kept(groups) == percent * groups // 100


@pytest.mark.parametrize(("k", "largest"), [(1, True), (3, False), (3, True), (GROUPS, False)])
@oracle.PROPERTY
@given(hnp.arrays(np.float32, GROUPS, elements=st.one_of(few, st.sampled_from([-0.0, np.nan, np.inf, -np.inf]))))
def test_top_groups_break_ties_downwards_and_put_nan_last(k, largest, scores):
    found = np.asarray(top_groups(scores, k, largest=largest))
    assert found.dtype == np.int32
    assert found.tolist() == oracle.top_groups(scores, k, largest)


@pytest.mark.parametrize("include_zero", [True, False])
@oracle.PROPERTY
@given(hnp.arrays(np.float32, GROUPS, elements=st.one_of(few, st.just(-0.5))), st.sampled_from([0.25, 0.5, 0.75, 1.0]))
@example(np.zeros(GROUPS, np.float32), 0.75)
@example(np.zeros(GROUPS, np.float32), 1.0)
@example(np.full(GROUPS, -0.5, np.float32), 0.75)
def test_the_nucleus_equals_the_reference(include_zero, scores, value):
    # With an eps of 2^-7 every sum is exact, so the comparison with the threshold has no rounding.
    found = np.asarray(top_p(scores, value=value, include_zero=include_zero, eps=2.0**-7))
    assert np.flatnonzero(found).tolist() == oracle.top_p(scores.tolist(), value, include_zero, 2.0**-7)


@pytest.mark.parametrize(
    ("rule", "largest", "include_zero", "values"),
    [
        ("top_k", True, True, [1.0, 0.25]),
        ("top_k", False, False, [3.0]),
        ("min_p", True, False, [0.5]),
        ("min_p", False, True, [0.5]),
        ("min_p", False, False, [0.5]),
        ("top_p_softmax", True, True, [0.9, 1e-9]),
        ("top_p_softmax", False, False, [0.5]),
    ],
)
@oracle.PROPERTY
@given(hnp.arrays(np.float32, GROUPS, elements=st.one_of(few, st.just(np.nan))))
def test_every_rule_equals_the_reference(rule, largest, include_zero, values, scores):
    for value in values:
        found = np.asarray(chosen(scores, rule, value=value, largest=largest, include_zero=include_zero))
        # A sum of a softmax within rounding of the value may be on either side.
        around = [value - 1e-5, value + 1e-5] if rule == "top_p_softmax" else [value]
        near = [oracle.chosen_groups(scores.tolist(), rule, v, largest, include_zero, 0.0) for v in around]
        assert np.flatnonzero(found).tolist() in near


@pytest.mark.parametrize("keep", [1, 3, 4])
@oracle.PROPERTY
@given(oracle.group_returns)
def test_the_kept_members_vary_as_much_as_any_choice(keep, scores):
    valid = np.ones(scores.shape, bool)
    found = np.asarray(within_groups(scores, valid, keep))
    assert (found.sum(axis=1) == keep).all()
    for row, kept in zip(scores.astype(np.float64), found):
        assert np.var(row[kept]) == pytest.approx(oracle.within_group(row, keep), abs=1e-6)
    # An invalid member has no effect: the others are chosen as if they were the whole group.
    valid[:, 1] = False
    broken = np.where(valid, scores, np.nan).astype(np.float32)
    found = np.asarray(within_groups(broken, valid, keep))
    assert (found.sum(axis=1) == keep).all()
    if keep < scores.shape[1]:
        assert not found[:, 1].any()
        for row, kept in zip(np.delete(scores, 1, axis=1).astype(np.float64), np.delete(found, 1, axis=1)):
            assert np.var(row[kept]) == pytest.approx(oracle.within_group(row, keep), abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_rounding_decides_nothing(seed):
    rng = np.random.default_rng(seed)

    def noisy(values):
        return np.float32(values) * (1 + rng.choice([-2, -1, 0, 1, 2], np.shape(values)) * np.float32(2**-23))

    level = noisy([0.5, 0.25, 0.5, 0.5, 0.0, 0.5, 0.25, np.nan])
    assert top_groups(level, 2).tolist() == [0, 2]
    assert top_groups(level, 3, largest=False).tolist() == [1, 4, 6]
    kept = {
        "top_k": chosen(level, "top_k", value=2.0, largest=True, include_zero=True),
        "top_p": chosen(level, "top_p", value=0.4, largest=True, include_zero=True, eps=0.0),
        "min_p": chosen(level, "min_p", value=0.5, largest=True, include_zero=True),
        "of the smallest": chosen(level[:4], "min_p", value=0.5, largest=False, include_zero=True),
        "softmax": chosen(level[[0, 2, 3, 5]], "top_p_softmax", value=0.5, largest=True, include_zero=True),
    }
    kept = {rule: np.flatnonzero(mask).tolist() for rule, mask in kept.items()}
    wanted = {"top_k": [0, 2], "top_p": [0, 2], "min_p": [0, 1, 2, 3, 5, 6], "of the smallest": [0, 1, 2, 3]}
    assert kept == wanted | {"softmax": [0, 1]}
    returns = noisy([[0.7, 1.3, 0.7, 1.3], [1.3, 0.7, 1.3, 0.7]])
    members = within_groups(returns, np.ones((2, 4), bool), 3)
    assert members.tolist() == [[False, True, True, True], [True, False, True, True]]
    equal = noisy(np.full((1, 6), 0.3))
    for some in (equal, equal[:, :1]):
        assert np.asarray(group_scores(some, np.ones(some.shape, bool), "std")).tolist() == [0.0]


@pytest.mark.parametrize("kind", ["std", "mean", "length"])
def test_a_group_without_episodes_is_kept_last_or_never(kind):
    values = np.float32([[-2, -1], [0, 0], [-3, -2]])
    scores = group_scores(values, np.array([[True, True], [False, False], [True, True]]), kind)
    assert np.isnan(scores[1])
    for largest in (True, False):
        assert filters.top_groups(scores, 2, largest=largest).tolist() == [0, 2]
    assert not np.asarray(top_p(np.full(GROUPS, np.nan, np.float32), value=1.0, include_zero=True)).any()


@pytest.mark.parametrize("k", [0, GROUPS + 1])
def test_keeping_none_or_too_many_is_refused(k):
    with pytest.raises(BadValue) as refused:
        filters.top_groups(STDS, k)
    assert (refused.value.key, refused.value.value) == ("k", k)
    with pytest.raises(BadValue) as refused:
        filters.within_groups(STDS[None], STDS[None] >= 0, k)
    assert (refused.value.key, refused.value.value) == ("keep", k)
