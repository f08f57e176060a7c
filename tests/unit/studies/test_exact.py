"""The mean of every estimator, summed over all groups of two, compared with the exact gradient; and its report."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from known_biases import KNOWN, MEASURED, bench, check
from refusing import refusal

from agentrl_jax.config.advantages import Rloo
from agentrl_jax.studies.estimator_bias import policies, task
from agentrl_jax.studies.estimator_bias.cases import CASES, OFF_POLICY, Case
from agentrl_jax.studies.estimator_bias.exact import Sampling
from agentrl_jax.studies.estimator_bias.report import UNBIASED, biased, run


def named(cases, name):
    return next(case for case in cases if case.name == name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_estimators_are_as_biased_as_they_are_known_to_be(case):
    check(bench("table", "none").measure(case, 2), KNOWN["none"]["table"]["2"])


@pytest.mark.parametrize("drift", ["none", "small", "large"])
def test_what_is_known_is_all_there_is(drift):
    cases = [case for of_drift, case in MEASURED if of_drift == drift]
    assert len({case.name for case in cases}) == len(cases)
    for of_policy in KNOWN[drift].values():
        for known in of_policy.values():
            assert known.keys() == {case.name for case in cases if not case.unbiased}


@pytest.mark.parametrize(("policy", "drift"), [("table", "small"), ("one_layer", "large")])
def test_the_product_of_all_ratios_of_an_episode_takes_the_drift_out(policy, drift):
    """E[w g] under the sampling policy is E[g] under the other policy, for any baseline from the other members."""
    result = bench(policy, drift).measure(named(OFF_POLICY, "product over the episode"), 2)
    assert result.bias < 1e-10
    assert result.scale == pytest.approx(1.0, abs=1e-10)


def test_what_is_found_off_policy_belongs_to_the_drift():
    assert bench("table", "none").drift_size == (0.0, 0.0, 0.0)
    some = ("truncated by sequence, 1.2", "masked by sequence, 1.2", "clip 0.2, 0.28, dual clip 3", "cispo 0.28")
    for name in (*some, "gspo 0.2, 0.28", "product up to each reward, reinforce"):
        assert not biased(bench("table", "none").measure(named(OFF_POLICY, name), 2)), name


def _clip(advantage, ratio, of_row):
    return np.where((advantage > 0) & (ratio > 1.28) | (advantage < 0) & (ratio < 0.8), 0.0, ratio)


WEIGHTS = {
    "clip 0.2, 0.28": _clip,
    "gspo 0.2, 0.28": lambda advantage, ratio, of_row: _clip(advantage, of_row, of_row),
    "masked by token, 1.2": lambda _, ratio, of_row: np.where(abs(np.log(ratio)) > np.log(1.2), 0.0, ratio),
    "product up to the token": lambda _, ratio, of_row: np.cumprod(ratio, axis=-1),
}


@pytest.mark.parametrize(("name", "weight"), WEIGHTS.items())
def test_the_mean_off_policy_is_that_of_a_sum_over_all_pairs(name, weight):
    """From the definitions of the algorithms, implemented again here."""
    here, mean = bench("table", "large"), 0.0
    for level in here.levels:
        t = level.t
        ratio = np.exp(level.logprob - level.behavior_logprob)
        of_row = np.exp(np.log(ratio).sum(axis=1, keepdims=True) / t.mask.sum(axis=1, keepdims=True))
        # Member i of the pair [i, j]; the other member is the same by symmetry.
        advantage = (t.returns[:, None] - t.returns[None, :])[:, :, None]
        weighted = advantage * weight(advantage, ratio[:, None], of_row[:, None])
        mean += np.einsum("i,j,ijs,isp->p", level.chance, level.chance, weighted, level.slopes) / task.LEVELS
    found = here.measure(named(OFF_POLICY, name), 2)
    size = np.linalg.norm(here.truth)
    assert found.scale == pytest.approx(mean @ here.truth / size**2, rel=1e-10)
    assert found.cosine == pytest.approx(mean @ here.truth / size / np.linalg.norm(mean), rel=1e-10)


def test_the_exact_gradient_is_that_of_the_expected_return():
    """By finite differences of a sum that is implemented again here."""
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

    truth, step = bench("table", "none").truth, 1e-5
    for index in range(0, len(policy.start), 4):
        moved = [policy.start + sign * step * np.eye(len(policy.start))[index] for sign in (1, -1)]
        slope = (expected_return(moved[0]) - expected_return(moved[1])) / (2 * step)
        assert truth[index] == pytest.approx(slope, abs=1e-9)


def test_sampling_agrees_with_the_sum_within_its_error():
    case, here = named(CASES, "grpo"), bench("table", "none")
    exact, sampled, other = (here.measure(case, 2, how) for how in (None, Sampling(20_000, 0), Sampling(20_000, 1)))
    assert sampled.error == pytest.approx(sampled.noise / np.sqrt(20_000))
    assert sampled.noise == pytest.approx(exact.noise, rel=0.1)
    assert abs(sampled.bias - exact.bias) < 4 * sampled.error
    assert other.bias != sampled.bias
    # Groups that do not count make the error larger.
    found = here.measure(named(CASES, "rloo, informative groups"), 2, Sampling(4000, 0))
    assert 1.05 < found.error / (found.noise / np.sqrt(4000)) < 1.2


def test_a_mistake_is_found(monkeypatch):
    """RLOO that divides by the group size instead of the number of other members, for one member only."""
    from agentrl_jax.algos import groups

    right = groups.leave_one_out
    wrong = jnp.array([1.0, 0.9])
    monkeypatch.setattr(groups, "leave_one_out", lambda x, valid: right(x, valid) * wrong[(x > 0.5).astype(int)])
    result = bench("table", "none").measure(Case(name="broken", rule=Rloo()), 2)
    assert result.bias > 1e3 * UNBIASED
    assert not jax.config.jax_enable_x64, "nothing is left in double precision"


OPTIONS = {"group_size": (2,), "policy": "table", "drift": "small", "direction": 0, "num_groups": 0}
OPTIONS |= {"only": "drift ignored", "seed": 0, "figure": None}


def test_off_policy_it_says_how_far_the_policies_are_apart(capsys):
    told = []
    run(**OPTIONS, format="json", report=told.append)
    assert "mean |log ratio| 0.076, KL 0.0046 a token, 4% outside 0.8 to 1.28" in told[0]
    assert len(told) == 1 + 2
    first, second = json.loads(capsys.readouterr().out)
    assert first["name"] == "reinforce, drift ignored"
    assert second["correction"] == "none"
    assert second["log_ratio"] == pytest.approx(0.0760, abs=1e-4)
    assert second["bias"] > 0.05


def test_another_direction_is_another_drift(capsys):
    options, report = OPTIONS | {"only": "rloo, drift"}, lambda line: None
    (one,) = run(**options, format="markdown", report=report)
    (other,) = run(**options | {"direction": 1}, format="table", report=report)
    assert "rloo" in capsys.readouterr().out
    assert one.drift_size != other.drift_size
    assert one.bias != other.bias


def test_what_is_of_no_use_is_refused():
    for key, value, others in (
        ("only", "gigpo", {}),
        ("only", "truncated", {"drift": "none"}),
        ("direction", -1, {}),
        ("direction", 1, {"drift": "none", "only": "rloo"}),
        ("group_size", 4, {"group_size": (4,)}),
        ("seed", 1, {}),
        ("draws", 1001, {"num_groups": 1001}),
        ("draws", 10, {"num_groups": 10}),
        ("figure", "bias.foo", {}),
        ("figure", "nowhere/bias.png", {}),
    ):
        words = OPTIONS | ({key: value} if key in OPTIONS else {}) | others
        error = refusal(run, **words, format="table", report=lambda line: None)
        assert (error.key, error.value) == (f"--{key}", value)
