"""Collapse alarms in a thousand simulated runs that do not change."""

import sys

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import collapse_alarms


@pytest.mark.parametrize("rate", collapse_alarms.RATES)
def test_at_most_one_in_a_hundred_unchanged_runs_raises_an_alarm(rate):
    (shares,) = collapse_alarms.table(collapse_alarms.unchanged((rate,)), runs=1000, seed=1).values()
    assert shares["any"] <= 0.01
