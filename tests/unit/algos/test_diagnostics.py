import jax
import numpy as np
import pytest
from algos_oracles import PROPERTY, masks, numbers
from hypothesis import given

from agentrl_jax.algos import diagnostics


@jax.jit
def measure(values, returns, mask):
    return diagnostics.masked_stats(values, mask), diagnostics.explained_variance(values, returns, mask)


@jax.jit
def group_metrics(returns, valid):
    return {name: x.value for name, x in diagnostics.group_means(returns, valid).items()}


@PROPERTY
@given(numbers, numbers, masks)
def test_metrics_speak_of_the_masked_positions_only(values, returns, mask):
    found = measure(values, returns, mask)
    if not mask.any():
        assert all(float(leaf) == 0 for leaf in jax.tree.leaves(found))
        return
    inside, targets = values[mask].astype(np.float64), returns[mask].astype(np.float64)
    explained = (1 - np.var(targets - inside, ddof=1) / (np.var(targets, ddof=1) + 1e-5)) if mask.sum() > 1 else 0.0
    expected = {"mean": inside.mean(), "max": inside.max(), "min": inside.min()}
    assert found[0] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert float(found[1]) == pytest.approx(explained, rel=1e-3, abs=1e-4)


def test_members_that_do_not_count_are_not_seen():
    returns = np.float32([[1.0, 2.0, 9.0, 4.0], [5.0, 5.0, -7.0, 5.0], [0.0, 1.0, 2.0, 3.0]])
    valid = np.array([[True, True, False, True], [True, True, False, True], [False] * 4])
    found = group_metrics(np.where(valid, returns, np.nan), valid)
    std = np.std([1.0, 2.0, 4.0], ddof=1)
    expected = {"in_group_std": std / 2, "in_group_max": 4.5, "in_group_mean": (7 / 3 + 5) / 2, "zero_std_share": 0.5}
    assert {name: float(x) for name, x in found.items()} == pytest.approx(expected, rel=1e-5)
    assert not any(map(float, group_metrics(returns, np.zeros_like(valid)).values()))


def test_the_share_of_members_that_said_what_another_said():
    code = np.array([[1, 1, 2, 3], [5, 5, 5, 5], [1, 2, 3, 4]], np.uint32)[..., None].repeat(2, axis=2)
    everyone = np.ones((3, 4), bool)
    assert float(diagnostics.repeated(code, everyone).value) == pytest.approx(6 / 12)
    some = everyone.copy()
    some[0, 0] = some[1, 1:] = False
    assert float(diagnostics.repeated(code, some).value) == 0.0
    assert float(diagnostics.repeated(code, ~everyone).value) == 0.0


def test_groups_of_one_have_no_share_without_spread():
    found = group_metrics(np.zeros((3, 1), np.float32), np.ones((3, 1), bool))
    assert "zero_std_share" not in found
    assert float(found["in_group_std"]) == 0.0
