"""Retrievers of other packages, unchanged: `bm25` (bm25s) and `static` (WordLlama), of the extra `search`."""

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from agentrl_jax.errors import BadValue, UserError, refusals
from agentrl_jax.retrieval.corpus import Corpus
from agentrl_jax.retrieval.retriever import Found, best
from envs_jax.retrieval.wordllama import load_wordllama

STOP_LIST = "en"
"""The stop words of bm25s that are left out."""


class Bm25:
    """BM25 by bm25s with its defaults (Lucene's formula, k1 = 1.5, b = 0.75), without English stop words.

    Only the choice of the best is ours: for a query without a known word the package returns arbitrary passages, and
    others where JAX can be imported.
    """

    def __init__(self, corpus: Corpus) -> None:
        """Raises UserError if the package is missing, or BadValue if no passage has a word."""
        self._package = package("bm25s")
        words = self._words(corpus.texts)
        if not any(words):
            raise BadValue(
                "the corpus has no word that BM25 can find; expected one of two letters in some passage", key="corpus"
            )
        self._index = self._package.BM25()
        self._index.index(words, show_progress=False)
        self._known = {word for passage in words for word in passage}

    def search(self, queries: Sequence[str], k: int, *, gold: Sequence[Sequence[int]] | None = None) -> Found:
        """See `Retriever.search`."""
        words = self._words(list(queries))
        known = np.array([not self._known.isdisjoint(each) for each in words], bool)
        none = np.zeros(self._index.scores["num_docs"], np.float32)
        scores = [self._index.get_scores(each) if has else none for each, has in zip(words, known)]
        return best(np.stack(scores) if scores else none[None, :][:0], known, k)

    def _words(self, texts: list[str]) -> list[list[str]]:
        return self._package.tokenize(texts, stopwords=STOP_LIST, return_ids=False, show_progress=False)


class WordLlama:
    """Cosine similarity of WordLlama's embeddings: the mean over the tokens of Llama 2, 256 numbers."""

    def __init__(self, corpus: Corpus) -> None:
        """Raises UserError if the package or its files are missing."""
        with refusals():
            self._model = load_wordllama()
        self._passages = self._embedded(corpus.texts)
        self._passages[~np.isfinite(self._passages)] = 0  # a passage without a token

    def search(self, queries: Sequence[str], k: int, *, gold: Sequence[Sequence[int]] | None = None) -> Found:
        """See `Retriever.search`; an empty text finds nothing."""
        embedded = self._embedded(list(queries))
        known = np.isfinite(embedded).all(axis=1)
        return best(np.where(known[:, None], embedded, 0) @ self._passages.T, known, k)

    def _embedded(self, texts: list[str]) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):  # an empty text is 0 / 0
            return self._model.embed(texts, norm=True)


_ADVICE = "install the extra `search`: pip install 'agentrl_jax[search]'"


def package(name: str) -> ModuleType:
    """Imports a package of the extra `search`; UserError if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"the package {name} cannot be imported ({error}); {_ADVICE}", key=name) from error


def package_folder(name: str, advice: str = _ADVICE) -> Path:
    """The folder of an installed package, which is not imported; UserError with the advice if it is missing."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise UserError(f"the package {name} is not installed; {advice}", key=name)
    return Path(found.submodule_search_locations[0])
