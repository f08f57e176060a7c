"""Slow checks of what the quick tests of the same name check."""

from spread_vocabulary import check_scores


def test_scores_and_gradients_are_those_of_one_device(monkeypatch):
    check_scores("tied", 2, 1, 2, monkeypatch)
