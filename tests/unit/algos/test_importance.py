"""Importance weights from rollout to learner: by brute force, and where both agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algos_oracles import PROPERTY, masks, numbers
from hypothesis import given
from pydantic import ValidationError

from agentrl_jax.algos.importance import importance_weights
from agentrl_jax.config.mismatch import IcePop, Tis

weigh = jax.jit(importance_weights, static_argnames="rule")
RULES = (
    *(Tis(low=low, high=1.5, reduction=name) for low in (0.0, 0.8) for name in ("token", "mean", "sum")),
    *(IcePop(low=0.7, high=1.5, reduction=name) for name in ("token", "mean", "sum", "max")),
    *(IcePop(criterion=k, low=None, high=0.3, reduction="token") for k in ("k1", "k2", "k3")),
    *(IcePop(criterion="k1", low=-0.2, high=0.3, reduction=name) for name in ("mean", "sum", "max")),
    *(IcePop(criterion="k3", high=0.3, reduction=name) for name in ("mean", "sum", "max")),
    IcePop(weighted=False),
)


def by_hand(rule, log_ratio, mask):
    """Weights and measures of all tokens, token by token."""

    def of_row(x, kept):
        if rule.reduction == "token":
            return list(x)
        chosen = [value for value, here in zip(x, kept) if here]
        total = {"mean": sum(chosen) / max(len(chosen), 1), "sum": sum(chosen), "max": max(chosen, key=abs, default=0)}
        return [total[rule.reduction]] * len(x)

    weights, measures = [], []
    for row, kept in zip(log_ratio, mask):
        ratios, kind = np.exp(of_row(row, kept)), getattr(rule, "criterion", "ratio")
        estimates = {"ratio": row, "k1": -row, "k2": row**2 / 2, "k3": np.exp(row) - 1 - row}[kind]
        measured = ratios if kind == "ratio" else np.array(of_row(estimates, kept))
        weight = ratios if kind == "ratio" and rule.reduction != "max" else np.exp(row)
        if isinstance(rule, Tis):
            weight = np.minimum(np.maximum(ratios, rule.low), rule.high)
        else:
            outside = (measured > rule.high) | (measured < (-np.inf if rule.low is None else rule.low))
            weight = np.where(outside, 0.0, weight if rule.weighted else 1.0)
        weights.append(weight)
        measures.append(measured)
    return np.array(weights), np.array(measures)


@pytest.mark.parametrize("rule", RULES, ids=str)
@PROPERTY
@given(numbers, numbers, masks)
def test_weights_equal_those_by_hand(rule, logprob, behavior, mask):
    log_ratio = (logprob - behavior).astype(np.float64)
    weight, hit = weigh(logprob, behavior, mask, rule=rule)
    expected, measured = by_hand(rule, log_ratio, mask)
    low = -np.inf if rule.low is None else rule.low
    # Within rounding of a bound, or where two tokens are as far, either result is correct.
    clear = mask & (np.abs(measured - rule.high) > 1e-4) & (np.abs(measured - low) > 1e-4)
    if rule.reduction == "max":
        far = np.sort(np.where(mask, np.abs(log_ratio), -1.0), axis=1)
        clear &= (far[:, -1:] - far[:, -2:-1]) > 1e-4
    np.testing.assert_allclose(np.asarray(weight)[clear], expected[clear], rtol=1e-3, atol=1e-4)
    outside = (measured > rule.high) | (measured < low)
    np.testing.assert_array_equal(np.asarray(hit)[clear], outside[clear])


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_equal_log_probabilities_leave_the_loss_as_it_is(rule):
    logprob = jnp.asarray(-np.geomspace(1e-6, 50, 64, dtype=np.float32)).reshape(4, 16)
    mask = np.arange(64).reshape(4, 16) % 3 > 0
    weight, hit = importance_weights(logprob, logprob, mask, rule)
    assert (np.asarray(weight) == 1.0).all()
    assert not np.asarray(hit).any()
    gradient = jax.grad(lambda x: jnp.sum(importance_weights(x, logprob - 0.1, mask, rule)[0]))(logprob)
    assert not np.asarray(gradient).any()


@pytest.mark.parametrize(
    "given",
    [{"low": 1.1}, {"low": -0.1}, {"high": 0.9}, {"criterion": "k3", "low": 0.1}, {"criterion": "k1", "low": 0.1}],
)
def test_bounds_that_would_drop_equal_tokens_are_refused(given):
    with pytest.raises(ValidationError):
        IcePop(**given)
    assert IcePop(criterion="k2").low is None
