"""Slow checks of what the quick tests of the same name check."""

import jax
import pytest
from sweeps import CONFIG

from agentrl_jax.studies.costs import measure
from agentrl_jax.studies.phases import DECODE, PhaseBuilder
from agentrl_jax.studies.sweep import Sweeper


@pytest.fixture(scope="module")
def costs():
    return Sweeper(CONFIG, jax.devices()[:2]).costs


@pytest.fixture(scope="module")
def run(costs):
    return costs.run


def test_costs_of_a_deeper_decoder_follow_from_two_shallow_ones(run, costs):
    measured = measure(PhaseBuilder(run, jax.devices()[:1]).phase(DECODE, 24), 1)
    extrapolated = costs.cost(DECODE, 24)
    assert extrapolated.flops == pytest.approx(measured.flops, rel=0.02)
    assert extrapolated.accessed == pytest.approx(measured.accessed, rel=0.1)
    assert extrapolated.arguments == pytest.approx(measured.arguments, rel=0.02)
