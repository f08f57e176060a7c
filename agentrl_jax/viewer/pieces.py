"""The table of the distinct tokens of a page, each with the text it stands for."""

from typing import Any

import numpy as np

from agentrl_jax.text.tokenizer import Tokenizer


class Pieces:
    """Numbers tokens in the order in which they are first seen, so that blocks packed earlier stay valid."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._number = np.full(tokenizer.vocab_size + 1, -1, np.int64)
        self._ids: list[int] = []

    def numbers(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the numbers of token ids of any shape; ids outside the vocabulary share one number."""
        ids = np.where((tokens >= 0) & (tokens < self._tokenizer.vocab_size), tokens, self._tokenizer.vocab_size)
        distinct, first = np.unique(ids, return_index=True)
        for token in distinct[np.argsort(first)]:
            if self._number[token] < 0:
                self._number[token] = len(self._ids)
                self._ids.append(int(token))
        return self._number[ids]

    def table(self) -> list[Any]:
        """Returns one entry per number: the id, and a text; or {"special": name}; or {"bytes": hex}; or null.

        Bytes are given where the token is no text alone, because it ends or begins within a character. Null means that
        the id has no token.
        """
        return [[token, self._entry(token)] for token in self._ids]

    def _entry(self, token: int) -> Any:
        if token in self._tokenizer.special_ids:
            return {"special": self._tokenizer.special_name(token)}
        data = self._tokenizer.token_bytes[token] if token < self._tokenizer.vocab_size else None
        if data is None:
            return None
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return {"bytes": data.hex()}
