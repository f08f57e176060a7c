"""The retrievers by name."""

import dataclasses
from collections.abc import Callable

from agentrl_jax.errors import UserError
from agentrl_jax.retrieval.controls import Empty, Oracle, Random, Shuffled
from agentrl_jax.retrieval.corpus import Corpus
from agentrl_jax.retrieval.dense import minilm
from agentrl_jax.retrieval.packaged import Bm25, WordLlama
from agentrl_jax.retrieval.remote import Http
from agentrl_jax.retrieval.retriever import Retriever


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of retriever: `make` is given the corpus and a seed, which only some controls use."""

    make: Callable[[Corpus, int], Retriever]
    control: bool = False


RETRIEVERS: dict[str, Kind] = {
    "bm25": Kind(lambda corpus, seed: Bm25(corpus)),
    "static": Kind(lambda corpus, seed: WordLlama(corpus)),
    "minilm": Kind(lambda corpus, seed: minilm(corpus)),
    "random": Kind(Random, control=True),
    "empty": Kind(lambda corpus, seed: Empty(), control=True),
    "shuffled": Kind(lambda corpus, seed: Shuffled(corpus, Bm25(corpus), seed), control=True),
    "oracle": Kind(lambda corpus, seed: Oracle(corpus), control=True),
}


def make_retriever(name: str, corpus: Corpus, seed: int) -> Retriever:
    """Makes the retriever called `name` over a corpus, or that at an address: http://HOST:PORT/retrieve.

    Raises:
        UserError: there is none of this name, or its package is missing.
        BadValue: it cannot search this corpus.
    """
    if name.startswith(("http://", "https://")):
        return Http(corpus, name)
    if name not in RETRIEVERS:
        raise UserError.of("retriever", name, f"expected one of {', '.join(RETRIEVERS)}, or an address of HTTP")
    return RETRIEVERS[name].make(corpus, seed)
