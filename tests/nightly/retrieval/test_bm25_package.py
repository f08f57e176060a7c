import bm25_package
import numpy as np
import plain_bm25
import pytest

from envs_jax.retrieval import traced_bm25


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


def test_those_of_a_traced_corpus_differ_in_ties_only():
    """In worlds of 300 short passages; idf and sums are rounded otherwise than in the package."""
    pytest.importorskip("bm25s")
    random = np.random.default_rng(2)
    total = dict.fromkeys(("equal", "tie", "other", "found"), 0)
    for _ in range(4):
        texts = bm25_package.random_corpus(random, 300, 400)
        rows = plain_bm25.sampled_queries(texts, random, 1000, bm25_package.SIZE)
        counts = bm25_package.compare(texts, rows, traced_bm25, plain_bm25.traced)
        total = {key: total[key] + count for key, count in counts.items()}
    print(total)
    assert total["found"] > 2400
    assert (total["equal"] > 3900, total["other"]) == (True, 0)
