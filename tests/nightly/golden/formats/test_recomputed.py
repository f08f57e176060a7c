"""What is computed again for old runs, of an environment that takes long to compile."""

from recomputed import LARGE, STORED, digests


def test_levels_their_splits_and_their_hashes_are_those_of_earlier_runs():
    assert digests(LARGE) == STORED["environments"][LARGE]
