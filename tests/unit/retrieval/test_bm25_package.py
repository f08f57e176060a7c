import bm25_package
import numpy as np
import plain_bm25
import pytest


def test_the_top_3_are_those_of_the_package():
    pytest.importorskip("bm25s")
    random = np.random.default_rng(0)
    texts = bm25_package.random_corpus(random, 300, 500)
    rows = plain_bm25.sampled_queries(texts, random, 200, bm25_package.SIZE)
    counts = bm25_package.compare(texts, rows)
    assert counts.pop("found") > 120
    assert counts == {"equal": 200, "tie": 0, "other": 0}
