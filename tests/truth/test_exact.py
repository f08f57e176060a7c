"""The mean of every estimator, summed over all groups of two, beside the exact gradient."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algos.estimate import EstimatorRule
from agentrl_jax.truth import policies, task
from agentrl_jax.truth.cases import CASES
from agentrl_jax.truth.exact import Bench, Case, Sampling
from agentrl_jax.truth.report import UNBIASED, biased

KNOWN = json.loads((Path(__file__).parent / "known_biases.json").read_text())
"""Bias and cosine of each estimator that has one, by policy, members and name."""
POLICIES = {"table": policies.table, "one_layer": policies.one_layer}


@pytest.fixture(scope="module")
def bench():
    made = {}
    return lambda name: made.setdefault(name, Bench(POLICIES[name]()))


def check(result, policy):
    assert biased(result) != result.case.unbiased, f"{result.case.name}: bias {result.bias:.3g}"
    known = KNOWN[policy][str(result.members)]
    if result.case.unbiased:
        assert result.case.name not in known
        assert result.cosine == pytest.approx(1.0, abs=1e-12)
    else:
        found = {"bias": result.bias, "cosine": result.cosine, "scale": result.scale}
        assert found == pytest.approx(known[result.case.name], rel=1e-5)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_estimators_are_as_biased_as_they_are_known_to_be(bench, case):
    check(bench("table").measure(case, 2), "table")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize(("policy", "members"), [("table", 3), ("one_layer", 2)])
def test_so_they_are_in_larger_groups_and_with_shared_parameters(bench, policy, members, case):
    check(bench(policy).measure(case, members), policy)


def test_what_is_known_is_all_there_is():
    names = {case.name for case in CASES}
    assert len(names) == len(CASES)
    for of_policy in KNOWN.values():
        for known in of_policy.values():
            assert known.keys() == {case.name for case in CASES if not case.unbiased}


def test_the_task_is_small_and_whole():
    for level in range(task.LEVELS):
        t = task.enumerate_level(level)
        assert len(t) <= 200
        # Under any policy the probabilities add up to 1.
        logits = np.random.default_rng(level).normal(size=(task.CONTEXTS, task.VOCABULARY))
        odds = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        chance = t.chance * np.where(t.mask, odds[t.context, t.tokens], 1.0).prod(axis=1)
        assert chance.sum() == pytest.approx(1.0, abs=1e-12)
        # What a critic should say before the first token is the expected return; in the mean no token is a surprise.
        values = task.true_values(t, chance)
        np.testing.assert_allclose(values[:, 0], chance @ t.returns, atol=1e-12)
        assert len(set(t.mask.sum(axis=1))) > 2


def test_the_exact_gradient_is_that_of_the_expected_return(bench):
    """By differences of a sum that is written down again here."""
    policy = policies.table()

    def expected_return(parameters):
        logits = parameters.reshape(task.CONTEXTS, task.VOCABULARY)
        odds = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        total = 0.0
        for level in range(task.LEVELS):
            t = task.enumerate_level(level)
            for j in range(len(t)):
                chance = t.chance[j]
                for s in range(task.ROW):
                    if t.mask[j, s]:
                        chance *= odds[t.context[j, s], t.tokens[j, s]]
                total += chance * t.returns[j] / task.LEVELS
        return total

    truth, step = bench("table").truth, 1e-5
    for index in range(0, len(policy.start), 4):
        moved = [policy.start + sign * step * np.eye(len(policy.start))[index] for sign in (1, -1)]
        slope = (expected_return(moved[0]) - expected_return(moved[1])) / (2 * step)
        assert truth[index] == pytest.approx(slope, abs=1e-9)


def test_sampling_agrees_with_the_sum_within_its_error(bench):
    case = next(case for case in CASES if case.name == "grpo")
    exact, sampled = bench("table").measure(case, 2), bench("table").measure(case, 2, Sampling(20_000, 0))
    assert sampled.error == pytest.approx(sampled.noise / np.sqrt(20_000))
    assert sampled.noise == pytest.approx(exact.noise, rel=0.1)
    assert abs(sampled.bias - exact.bias) < 4 * sampled.error
    other = bench("table").measure(case, 2, Sampling(20_000, 1))
    assert other.bias != sampled.bias


def test_a_mistake_is_found(bench, monkeypatch):
    """RLOO that divides by the number of members instead of the others, but in one member only."""
    from agentrl_jax.algos import groups

    right = groups.leave_one_out

    def wrong(scores, intact):
        return right(scores, intact) * jnp.where(scores > 0.5, 0.9, 1.0)

    monkeypatch.setattr(groups, "leave_one_out", wrong)
    result = bench("table").measure(Case(name="broken", rule=EstimatorRule(advantage="rloo")), 2)
    assert result.bias > 1e3 * UNBIASED


def test_nothing_is_left_in_double_precision(bench):
    bench("table")
    assert jnp.zeros(1).dtype == jnp.float32
    assert not jax.config.jax_enable_x64
