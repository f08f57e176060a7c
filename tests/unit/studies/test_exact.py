"""The mean of every estimator, summed over all groups of two, compared with the exact gradient; and its report."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paths import GOLDEN, ROOT
from refusing import refusal

from agentrl_jax.config.advantages import Rloo
from agentrl_jax.studies.estimator_bias import apply, policies, teachers
from agentrl_jax.studies.estimator_bias.cases import CASES, OFF_POLICY, UNBIASED, Case
from agentrl_jax.studies.estimator_bias.exact import Bench, Sampling
from agentrl_jax.studies.estimator_bias.report import biased, run

KNOWN = json.loads((GOLDEN / "known_biases.json").read_text())
"""Bias and cosine of each biased estimator, by drift, policy, group size and name."""
MEASURED = [("none", case) for case in CASES] + [(drift, case) for drift in ("small", "large") for case in OFF_POLICY]

every = pytest.mark.parametrize(("drift", "case"), MEASURED, ids=lambda x: x if isinstance(x, str) else x.name)


@functools.cache
def bench(policy, drift):
    trained = policies.NAMED[policy]()
    return Bench(trained, policies.drifted(trained, drift, 0))


def check(result, known):
    assert biased(result) != result.case.unbiased, f"{result.case.name}: bias {result.bias:.3g}"
    if result.case.unbiased:
        assert result.case.name not in known
        assert result.cosine == pytest.approx(1.0, abs=1e-12)
    else:
        found = {"bias": result.bias, "cosine": result.cosine, "scale": result.scale}
        assert found == pytest.approx(known[result.case.name], rel=1e-5)


def named(cases, name):
    return next(case for case in cases if case.name == name)


@pytest.mark.parametrize("name", ["reinforce", "rloo", "grpo", "gigpo", "hgpo, one state of history"])
def test_estimators_are_as_biased_as_they_are_known_to_be(name):
    """One of each kind of advantages; the nightly tests have them all."""
    check(bench("table", "none").measure(named(CASES, name), 2), KNOWN["none"]["table"]["2"])


@pytest.mark.parametrize("drift", ["none", "small", "large"])
def test_what_is_known_is_all_there_is(drift):
    cases = [case for of_drift, case in MEASURED if of_drift == drift]
    assert len({case.name for case in cases}) == len(cases)
    for of_policy in KNOWN[drift].values():
        for known in of_policy.values():
            assert known.keys() == {case.name for case in cases if not case.unbiased}


@pytest.mark.nightly
def test_the_product_of_all_ratios_of_an_episode_takes_the_drift_out():
    """E[w g] under the sampling policy is E[g] under the other policy, for any baseline from the other members."""
    result = bench("one_layer", "large").measure(named(OFF_POLICY, "product over the episode"), 2)
    assert result.bias < 1e-10
    assert result.scale == pytest.approx(1.0, abs=1e-10)


def test_what_is_found_off_policy_belongs_to_the_drift():
    assert bench("table", "none").drift_size == (0.0, 0.0, 0.0)
    for name in ("truncated by sequence, 1.2", "gspo 0.2, 0.28"):
        assert not biased(bench("table", "none").measure(named(OFF_POLICY, name), 2)), name


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
OPTIONS |= {"only": "drift ignored", "seed": 0, "figure": None, "own": ""}


OWN_GRPO = """
import jax.numpy as jnp
from agentrl_jax.algos.filters import group_scores, top_groups
from agentrl_jax.rules import AdvantageInputs, FilterInputs, groups, rule

@rule()
def better(inputs: FilterInputs):
    kept = top_groups(group_scores(inputs.returns, inputs.valid, "std"), 1)
    return jnp.zeros(len(inputs.valid), bool).at[kept].set(True)

@rule()
def informative(inputs: FilterInputs, *, least: float = 1e-6):
    return groups.center_and_std(inputs.returns, inputs.valid)[1] > least

@rule()
def long(inputs: FilterInputs):
    return jnp.max(jnp.where(inputs.valid, inputs.length, 0.0), axis=1) > 4

@rule()
def none(inputs: FilterInputs):
    return jnp.max(jnp.where(inputs.valid, inputs.returns, 0.0), axis=1) > 9

@rule(needs=("groups",))
def grpo(inputs: AdvantageInputs, *, floor: float = 1e-6):
    centered, std = groups.center_and_std(inputs.scores, inputs.valid)
    return (centered / (std[:, None] + floor)).reshape(-1, 1) * inputs.mask
"""


@pytest.fixture(scope="module")
def own_rules(tmp_path_factory):
    """The module of the guide, and one with GRPO written out."""
    folder = tmp_path_factory.mktemp("rules")
    guide = (ROOT / "docs" / "guides" / "own_rules.md").read_text()
    (folder / "rules_of_the_guide.py").write_text(re.search(r"```python\n(.*?)```", guide, re.DOTALL)[1])
    (folder / "written_out.py").write_text(OWN_GRPO)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


@pytest.mark.parametrize(
    ("own", "known", "drift"),
    [
        pytest.param("rules_of_the_guide:centered", "dr_grpo", "none", marks=pytest.mark.nightly),
        pytest.param("written_out:grpo", "grpo", "none", marks=pytest.mark.nightly),
        pytest.param("written_out:better", "rloo, better of two groups", "none", marks=pytest.mark.nightly),
        ("{kind: rules_of_the_guide:capped, cap: 1.28}", "cispo 0.28", "large"),
    ],
)
def test_a_rule_of_the_user_has_the_bias_of_the_one_that_it_writes_out(own, known, drift, own_rules):
    options = OPTIONS | {"drift": drift, "only": known, "own": own}
    found, *others = run(**options, format="markdown", report=lambda line: None)
    other = next(result for result in others if result.case.name == known)
    assert (found.bias, found.noise, found.scale) == pytest.approx((other.bias, other.noise, other.scale), abs=1e-7)
    assert (found.limit_error > 0) == (drift == "none" and found.case.filter is None)


def test_a_filter_of_the_user_may_keep_both_groups_or_none(own_rules):
    options = OPTIONS | {"drift": "none", "only": "rloo, informative", "format": "json", "report": lambda line: None}
    found, known = run(**options | {"own": "written_out:informative"})
    assert not biased(found)
    assert (found.scale, found.cosine) == pytest.approx((known.scale, 1.0), rel=1e-6)
    assert found.noise < known.noise
    for name in ("long", "none"):
        assert refusal(run, **options | {"own": f"written_out:{name}"}).value == f"written_out:{name}"


def test_a_biased_rule_of_the_user_says_so(own_rules):
    options = OPTIONS | {"drift": "none", "only": "dr_grpo", "own": "rules_of_the_guide:over_worst"}
    found, *_ = run(**options, format="json", report=lambda line: None)
    assert biased(found)
    assert found.bias == pytest.approx(0.083742, abs=1e-6)


def test_off_policy_it_says_how_far_the_policies_are_apart_and_another_direction_is_another_drift(capsys):
    told, report = [], lambda line: None
    run(**OPTIONS, format="json", report=told.append)
    assert "mean |log ratio| 0.076, KL 0.0046 a token, 4% outside 0.8 to 1.28" in told[0]
    assert len(told) == 1 + 2
    first, second = json.loads(capsys.readouterr().out)
    assert first["name"] == "reinforce, drift ignored"
    assert second["correction"] == "none"
    assert second["log_ratio"] == pytest.approx(0.0760, abs=1e-4)
    assert second["bias"] > 0.05
    options = OPTIONS | {"only": "rloo, drift"}
    (one,) = run(**options, format="markdown", report=report)
    (other,) = run(**options | {"direction": 1}, format="table", report=report)
    assert "rloo" in capsys.readouterr().out
    assert one.drift_size != other.drift_size
    assert one.bias != other.bias


def test_what_is_of_no_use_is_refused():
    for key, value, others in (
        ("only", "gigpo", {}),
        ("own", "rules", {}),
        ("own", "[1]", {}),
        ("own", "gone:x", {}),
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


def test_distillation_is_the_gradient_of_the_divergence_at_the_visited_states():
    """Whatever the teacher; only one that says how likely each token is to succeed gives the policy gradient."""
    itself, outcome, plan, wrong = teachers.measure(bench("table", "none"))
    assert [taught.teacher for taught in (itself, outcome, plan, wrong)] == ["itself", "outcome", "plan", "wrong plan"]
    assert (itself.length, itself.of_return) == (pytest.approx(0, abs=1e-12), None)
    for taught in (outcome, plan, wrong):
        assert taught.at_states == pytest.approx(1, abs=1e-12)
        assert taught.of_episodes < 0.9999
    assert (outcome.of_return, outcome.length, outcome.mixed) == pytest.approx((1, 1, 0), abs=1e-9)
    assert 0.5 < plan.of_return < 0.7
    assert wrong.of_return < -0.7
    assert plan.gain > 0.4 > 0 > wrong.gain
    assert plan.gated != pytest.approx(plan.of_return)


@pytest.mark.nightly
@every
@pytest.mark.parametrize(("policy", "group_size"), [("table", 2), ("table", 3), ("one_layer", 2)])
def test_so_they_are_in_larger_groups_and_with_shared_parameters(policy, group_size, drift, case):
    check(bench(policy, drift).measure(case, group_size), KNOWN[drift][policy][str(group_size)])


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["masked by sequence, 1.2", "clip 0.2, 0.28, dual clip 3", "cispo 0.28"])
def test_without_a_drift_corrections_change_nothing(name):
    case = next(case for case in OFF_POLICY if case.name == name)
    assert not biased(bench("table", "none").measure(case, 2))


STATES = ("gigpo", "gigpo without std", "hgpo, one state of history", "per-turn normalization")


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*STATES, "grpo, rows by length", "whitened reinforce (reinforce_pp)"])
def test_groups_without_end_are_what_large_ones_come_to(name):
    case = next(case for case in CASES if case.name == name)
    draw = np.random.default_rng(0)
    with jax.enable_x64(True):
        for level in bench("table", "none").levels:
            index = draw.choice(len(level.t), 30000, p=level.chance / level.chance.sum())
            rows = jax.tree.map(lambda x, index=index: x[index], level.rows(case))
            large = np.asarray(apply.advantages(case, rows, len(index), jnp.float64(0.0)))
            np.testing.assert_allclose(large, level.population(case)[index], atol=0.06)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", ["rloo, token_mean", "grpo, rows by length", "whitened dr_grpo (reinforce_pp baseline)"]
)
def test_the_own_objective_is_what_the_mean_comes_to(name):
    """Not that of a batch over both levels, whose lengths and moments differ."""
    case, here = next(case for case in CASES if case.name == name), bench("table", "none")
    small, large = (here.measure(case, size, Sampling(4000, 0)) for size in (2, 64))
    assert large.own_cosine > 0.9995
    assert large.own_cosine > max(small.own_cosine, large.cosine)
    assert large.bias == pytest.approx(large.limit, abs=3 * large.error)
    assert large.limit > UNBIASED
