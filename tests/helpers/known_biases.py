"""Known biases of estimators, and the task that they are measured on."""

import functools
import json

import pytest
from paths import GOLDEN

from agentrl_jax.studies.estimator_bias import policies
from agentrl_jax.studies.estimator_bias.cases import CASES, OFF_POLICY
from agentrl_jax.studies.estimator_bias.exact import Bench
from agentrl_jax.studies.estimator_bias.report import biased

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
