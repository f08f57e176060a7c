"""Retrievers that decide whether an agent's searches matter: what it scores with them is compared with the real one."""

import hashlib
from collections.abc import Sequence

import numpy as np

from agentrl_jax.errors import BadValue
from agentrl_jax.retrieval.corpus import Corpus
from agentrl_jax.retrieval.retriever import Found, Retriever, listed


class Random:
    """Different passages at random, always the same for a query and a seed; all scores are 0."""

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self._size, self._seed = len(corpus), seed

    def search(self, queries: Sequence[str], k: int, *, gold: Sequence[Sequence[int]] | None = None) -> Found:
        """See `Retriever.search`; an empty query finds passages too."""
        return listed([self._order(query)[:k] for query in queries], k)

    def _order(self, query: str) -> np.ndarray:
        digest = hashlib.sha256(f"{self._seed} {query}".encode("utf-8", "surrogatepass")).digest()
        return np.random.default_rng(int.from_bytes(digest)).permutation(self._size)


class Empty:
    """Finds nothing."""

    def search(self, queries: Sequence[str], k: int, *, gold: Sequence[Sequence[int]] | None = None) -> Found:
        """See `Retriever.search`."""
        return listed([()] * len(queries), k)


class Shuffled:
    """The lists and scores of another retriever, in which every passage stands for another one, always the same.

    So a query finds what another query should find, and similar queries find similar lists.
    """

    def __init__(self, corpus: Corpus, base: Retriever, seed: int) -> None:
        if len(corpus) < 2:
            raise BadValue("a corpus of 1 passage cannot be shuffled; expected at least 2", key="corpus", value=1)
        circle = np.random.default_rng(seed).permutation(len(corpus)).astype(np.int32)
        self._base, self._other = base, np.empty_like(circle)
        self._other[circle] = np.roll(circle, 1)  # one cycle: no passage stands for itself

    def search(self, queries: Sequence[str], k: int, *, gold: Sequence[Sequence[int]] | None = None) -> Found:
        """See `Retriever.search`; of equal scores, any id may come first."""
        found = self._base.search(queries, k, gold=gold)
        return found._replace(ids=np.where(found.ids < 0, -1, self._other[found.ids]))


class Oracle:
    """The right passages, whatever the query is, with score 1."""

    def __init__(self, corpus: Corpus) -> None:
        self._size = len(corpus)

    def search(self, queries: Sequence[str], k: int, *, gold: Sequence[Sequence[int]] | None = None) -> Found:
        """See `Retriever.search`; finds at most as many passages as are right, in the order given."""
        if gold is None or len(gold) != len(queries):
            given = None if gold is None else len(gold)
            why = f"gold is of {given} queries; expected the right passages of each of {len(queries)}"
            raise BadValue(why, key="gold", value=given)
        for row in gold:
            for id_ in row:
                if not 0 <= id_ < self._size:
                    raise BadValue.of("gold", id_, f"expected ids of passages, from 0 to {self._size - 1}")
        found = listed(gold, k)
        return found._replace(scores=(found.ids >= 0).astype(np.float32))
