"""Slow checks of what the quick tests of the same name check."""

from spread_attention import check_positions


def test_positions_on_four_devices_equal_the_plain_form(monkeypatch):
    check_positions(monkeypatch, window=13, packed=True)
