"""Scores of tokens where each device computes the logits of a part of the vocabulary equal those of one device."""

from spread_vocabulary import check_scores


def test_scores_and_gradients_are_those_of_one_device(monkeypatch):
    check_scores("tied", 2, 1, 2, monkeypatch)
