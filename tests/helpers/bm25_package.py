"""Compares compiled BM25 with the package bm25s over random corpora."""

import jax
import numpy as np
import plain_bm25

from agentrl_jax.retrieval.corpus import Corpus
from agentrl_jax.retrieval.packaged import Bm25
from envs_jax.retrieval import compiled_bm25, traced_bm25

SIZE = 96


def random_corpus(random, passages, vocabulary):
    """Passages of words with Zipf's frequencies, some of them with other letters."""
    odd = ("Σίσυφος", "Ὀδυσσεύς", "İstanbul", "naïve", "Москва", "café", "x", "the", "of", "and")
    names = [*odd, *(f"{random.choice(['ka', 'lo', 'mi'])}{i:x}" for i in range(vocabulary))]
    odds = 1 / np.arange(1, len(names) + 1)
    sizes = random.integers(1, 40, passages)
    return [" ".join(random.choice(names, size, p=odds / odds.sum())) for size in sizes]


def compare(texts, rows, module=compiled_bm25, build=compiled_bm25.build_index, k=3):
    """Counts queries by result: equal, tie (as good by the scores of the package, to 1e-5), other; and those found.

    `equal` asks for the same bits of scores from the indexed form, and for six digits from the traced one.
    """
    ours = jax.device_get(plain_bm25.program(module, k)(build(texts), *plain_bm25.as_bytes(rows, SIZE)))
    package = Bm25(Corpus.of(("", text) for text in texts))
    queries = [data.decode("utf-8", "replace") for data in rows]
    whole, theirs = package.search(queries, len(texts)), package.search(queries, k)
    counts = {"equal": 0, "tie": 0, "other": 0, "found": int((theirs.found > 0).sum())}
    for row in range(len(rows)):
        near = 1e-6 if module is traced_bm25 else 0
        same = (ours.ids[row] == theirs.ids[row]) & np.isclose(ours.scores[row], theirs.scores[row], near, near)
        if ours.found[row] == theirs.found[row] and same.all():
            counts["equal"] += 1
            continue
        by_id = np.zeros(len(texts))
        by_id[whole.ids[row]] = whole.scores[row]
        close = ours.found[row] == theirs.found[row] > 0 and np.allclose(
            by_id[ours.ids[row]], theirs.scores[row], atol=1e-5
        )
        counts["tie" if close else "other"] += 1
    return counts
