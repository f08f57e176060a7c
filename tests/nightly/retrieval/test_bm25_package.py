import bm25_package
import numpy as np
import plain_bm25
import pytest


def test_the_top_3_of_ten_thousand_queries_are_those_of_the_package():
    pytest.importorskip("bm25s")
    random = np.random.default_rng(1)
    total = dict.fromkeys(("equal", "tie", "other", "found"), 0)
    for passages in (1, 2, 50, 400, 3000):
        texts = bm25_package.random_corpus(random, passages, 2000)
        texts[0] += " stone"  # no corpus without a word
        rows = plain_bm25.sampled_queries(texts, random, 2000, bm25_package.SIZE)
        total = {key: total[key] + count for key, count in bm25_package.compare(texts, rows).items()}
    print(total)
    assert total.pop("found") > 6000
    assert total == {"equal": 10_000, "tie": 0, "other": 0}
