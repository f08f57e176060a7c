"""Known biases in groups of three, and with shared parameters; and what large groups come to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from known_biases import KNOWN, bench, check, every

from agentrl_jax.studies.estimator_bias import apply
from agentrl_jax.studies.estimator_bias.cases import CASES, OFF_POLICY, UNBIASED
from agentrl_jax.studies.estimator_bias.exact import Sampling
from agentrl_jax.studies.estimator_bias.report import biased


@every
@pytest.mark.parametrize(("policy", "group_size"), [("table", 2), ("table", 3), ("one_layer", 2)])
def test_so_they_are_in_larger_groups_and_with_shared_parameters(policy, group_size, drift, case):
    check(bench(policy, drift).measure(case, group_size), KNOWN[drift][policy][str(group_size)])


@pytest.mark.parametrize("name", ["masked by sequence, 1.2", "clip 0.2, 0.28, dual clip 3", "cispo 0.28"])
def test_without_a_drift_corrections_change_nothing(name):
    case = next(case for case in OFF_POLICY if case.name == name)
    assert not biased(bench("table", "none").measure(case, 2))


STATES = ("gigpo", "gigpo without std", "hgpo, one state of history", "per-turn normalization")


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
