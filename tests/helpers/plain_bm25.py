"""BM25 written out in Python, from the formula alone; and queries in bytes."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.retrieval import words
from envs_jax.retrieval.characters import read, words_in


def words_of(text):
    return [word for word in re.findall(r"\b\w\w+\b", text.lower()) if word not in words.STOP_WORDS]


def scores_of(texts, query):
    """f64[N], or None where the query has no word of the texts."""
    passages = [words_of(text) for text in texts]
    mean = sum(map(len, passages)) / len(passages)
    scores, known = np.zeros(len(texts)), False
    for word in words_of(query):
        having = sum(word in passage for passage in passages)
        known |= having > 0
        inverse = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for i, passage in enumerate(passages):
            f = passage.count(word)
            scores[i] += inverse * f / (f + 1.5 * (1 - 0.75 + 0.75 * len(passage) / mean)) if f else 0
    return scores if known else None


def traced(texts):
    """The words of texts for `traced_bm25`, with gaps."""
    rows = [words.words_of(text) for text in texts]
    hashes = np.zeros((len(rows), max(map(len, rows)) + 1, 2), np.uint32)
    for row, known in zip(hashes, rows):
        if known:
            row[1 : len(known) + 1] = words.word_hashes(known)
    return jnp.array(hashes)


def as_bytes(rows, size):
    data = np.zeros((len(rows), size), np.uint8)
    for row, given in zip(data, rows):
        row[: len(given)] = list(given[:size])
    return data, np.array([len(given) for given in rows])


def program(module, k):
    """Searches for bytes of queries, from (index, data, totals)."""

    def one(index, data, total):
        return module.search(index, words_in(read(data, total)), k)

    return jax.jit(jax.vmap(one, in_axes=(None, 0, 0)))


def sampled_queries(texts, random, number, size):
    """Queries as bytes: words of the texts, parts of them, other letters, and bytes that are no text."""
    named = [word for text in texts for word in text.split()]
    odd = ("ΣΊΣΥΦΟΣ", "ὈΔΥΣΣΕΎΣ'", "İstanbul", "naïve", "МОСКВА", "日本語", "the", "of", "zzzz", "a", "", "ẞ", "CAFÉ")
    rows = []
    for index in range(number):
        count = int(random.integers(1, 9))
        if index % 8 == 0:
            rows.append(random.bytes(count * 8))
            continue
        kinds = {1: (odd,), 2: (odd, named), 3: (("the", "of", "And"),)}.get(index % 8, (named,))
        lists = [kinds[i] for i in random.integers(len(kinds), size=count)]
        parts = [each[int(random.integers(len(each)))] for each in lists]
        changed = [
            random.choice([part, part.upper(), part.title()]) if random.random() < 0.3 else part for part in parts
        ]
        data = bytearray(" ".join(map(str, changed)).encode()[:size])
        if index % 8 == 4 and data:
            data[int(random.integers(len(data)))] = int(random.integers(256))
        rows.append(bytes(data[:size]))
    return rows
