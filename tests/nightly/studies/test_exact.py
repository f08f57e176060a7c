"""Known biases in groups of three, and with shared parameters."""

import pytest
from known_biases import KNOWN, bench, check, every


@every
@pytest.mark.parametrize(("policy", "group_size"), [("table", 2), ("table", 3), ("one_layer", 2)])
def test_so_they_are_in_larger_groups_and_with_shared_parameters(policy, group_size, drift, case):
    check(bench(policy, drift).measure(case, group_size), KNOWN[drift][policy][str(group_size)])
