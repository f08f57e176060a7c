"""Attention with the positions of a row on several devices, in more cases."""

import pytest
from spread_attention import check_branches, check_positions


@pytest.mark.parametrize("packed", [False, True])
def test_positions_on_four_devices_equal_the_plain_form(monkeypatch, packed):
    check_positions(monkeypatch, window=0, packed=packed)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "implementation"), [(4, 2, "blocks"), (6, 3, "blocks"), (2, 1, "splash")]
)
def test_no_device_waits_in_its_branch_for_another(monkeypatch, heads, kv_heads, implementation):
    check_branches(monkeypatch, heads, kv_heads, implementation)
