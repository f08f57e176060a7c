"""A retriever on a server, with the protocol of Search-R1: `POST /retrieve`."""

import json
import time
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np

from agentrl_jax.errors import MAX_FOREIGN, UserError, shortened
from agentrl_jax.retrieval.corpus import Corpus
from agentrl_jax.retrieval.retriever import Found, listed
from agentrl_jax.strict_json import parse

SECONDS = 60.0
"""Time of a request, which is sent twice at most."""
MOST_BYTES = 64 * 2**20
"""Largest answer."""


class RetrieverError(UserError):
    """A server did not answer, or gave no lists of passages."""


class Http:
    """The retriever at an address, over the passages of a corpus that are its documents.

    A document is known by its `id`, or else by its `contents`.
    """

    def __init__(self, corpus: Corpus, address: str, seconds: float = SECONDS) -> None:
        """Sends no request yet; UserError if the address is none of HTTP."""
        try:
            url = httpx.URL(address)
        except (httpx.InvalidURL, ValueError):
            url = httpx.URL("")
        if url.scheme not in ("http", "https") or not url.host:
            raise UserError.of("retriever", address, "expected an address, such as http://127.0.0.1:8000/retrieve")
        self._url, self._seconds = url if url.path not in ("", "/") else url.copy_with(path="/retrieve"), seconds
        self._names = {passage.name: index for index, passage in enumerate(corpus.passages)}
        self._contents = {passage.contents: index for index, passage in enumerate(corpus.passages)}

    def search(self, queries: Sequence[str], k: int, *, gold: Sequence[Sequence[int]] | None = None) -> Found:
        """See `Retriever.search`; the order is that of the server.

        Raises:
            RetrieverError: the server does not answer in time, twice; or its answer is no list of known passages for
                each query.
        """
        if not queries:
            return listed([], k)
        body = {"queries": list(queries), "topk": k, "return_scores": True}
        rows = self._result(self._answer(body), len(queries))
        ids = [[self._id(entry) for entry in row[:k]] for row in rows]
        found = listed(ids, k)
        for query, row in enumerate(rows):
            found.scores[query, : found.found[query]] = [_score(entry) for entry in row[:k]]
        return found

    def _answer(self, body: dict[str, Any]) -> Any:
        why: Exception | str = ""
        for _ in range(2):
            try:
                return self._asked(body)
            except (httpx.HTTPError, TimeoutError) as error:
                why = error
        raise RetrieverError.at(
            str(self._url), f"does not answer ({shortened(why, MAX_FOREIGN) or type(why).__name__})"
        )

    def _asked(self, body: dict[str, Any]) -> Any:
        end = time.monotonic() + self._seconds
        client = httpx.Client(timeout=self._seconds, trust_env=False)
        with client, client.stream("POST", self._url, json=body) as response:
            parts, size = [], 0
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > MOST_BYTES:
                    raise RetrieverError.at(str(self._url), f"answers with more than {MOST_BYTES} bytes", size)
                if time.monotonic() > end:
                    raise TimeoutError(f"no whole answer in {self._seconds:g} s")
        data = b"".join(parts)
        if response.status_code >= 500:
            raise httpx.HTTPError(f"status {response.status_code}")
        if response.status_code != 200:
            shown = shortened(data.decode("utf-8", "replace"), MAX_FOREIGN)
            raise RetrieverError.at(str(self._url), f"refuses with status {response.status_code}: {shown}")
        try:
            return parse(data, str(self._url), advice="")
        except ValueError as error:
            raise RetrieverError.after("", error) from error

    def _result(self, answer: Any, number: int) -> list[list[Any]]:
        result = answer.get("result") if isinstance(answer, dict) else None
        if not isinstance(result, list) or len(result) != number or not all(isinstance(row, list) for row in result):
            given = shortened(json.dumps(answer), MAX_FOREIGN)
            raise RetrieverError.at(str(self._url), f"answers {given}; expected a list of passages for each query")
        return result

    def _id(self, entry: Any) -> int:
        document = entry.get("document") if isinstance(entry, dict) else None
        if isinstance(document, dict):
            name, contents = document.get("id"), document.get("contents")
            found = self._names.get(str(name)) if isinstance(name, str | int) else None
            found = self._contents.get(contents) if found is None and isinstance(contents, str) else found
            if found is not None:
                return found
        given = shortened(json.dumps(entry), MAX_FOREIGN)
        raise RetrieverError.at(str(self._url), f"found {given}, which is no passage of the corpus")


def _score(entry: Any) -> float:
    score = entry.get("score")
    return float(np.float32(score)) if isinstance(score, int | float) else 0.0
