"""What every retriever on the host has: `search`."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Float32, Int32

from agentrl_jax.errors import BadValue


class Found(NamedTuple):
    """Passages for Q queries, the best first.

    Attributes:
        ids: i32[Q, k] ids of passages; -1 beyond `found`.
        scores: f32[Q, k] their scores; 0 beyond `found`.
        found: i32[Q] number of passages that were found: k, or the corpus if it is smaller, or 0.
    """

    ids: Int32[np.ndarray, "Q K"]
    scores: Float32[np.ndarray, "Q K"]
    found: Int32[np.ndarray, " Q"]


class Retriever(Protocol):
    """Finds passages of a corpus for queries; deterministic, and independent of the other queries of a call."""

    def search(self, queries: Sequence[str], k: int, *, gold: Sequence[Sequence[int]] | None = None) -> Found:
        """Returns the k best passages of each query; of equal scores, the lower id comes first.

        Args:
            queries: texts. One that has nothing to search for finds nothing.
            k: at least 1; beyond the corpus, all of it is returned.
            gold: the ids of the right passages of each query, which only `oracle` reads.

        Raises:
            BadValue: k is less than 1, or the retriever is `oracle` and there is no gold.
        """


def best(scores: Float32[np.ndarray, "Q N"], known: np.ndarray, k: int) -> Found:
    """The k passages of the highest scores; `known` is bool[Q], and a query that is not known finds nothing."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return listed([ids if has else ids[:0] for ids, has in zip(order, known)], k, scores)


def listed(rows: Sequence[Sequence[int] | np.ndarray], k: int, scores: np.ndarray | None = None) -> Found:
    """Lists of ids as `Found`, cut to k; their scores are those of f32[Q, N], or 0."""
    if k < 1:
        raise BadValue.of("k", k, "expected at least 1 passage")
    ids, values = np.full((len(rows), k), -1, np.int32), np.zeros((len(rows), k), np.float32)
    found = np.array([min(len(row), k) for row in rows], np.int32)
    for query, (row, number) in enumerate(zip(rows, found)):
        ids[query, :number] = row[:number]
        if scores is not None:
            values[query, :number] = scores[query, ids[query, :number]]
    return Found(ids, values, found)
