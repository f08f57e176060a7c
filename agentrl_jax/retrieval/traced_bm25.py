"""BM25 over a small corpus that is itself an argument of the program, as where words change with the world.

The formula is that of `compiled_bm25`, all in float32: scores differ from the package's in the last bits.
Shapes: `D` passages of at most `L` words.
"""

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float32, Int, Int32, UInt32

from agentrl_jax.retrieval.compiled_bm25 import K1, B
from agentrl_jax.retrieval.query import QueryTable, Words, query_words
from agentrl_jax.retrieval.top_k import FoundOnDevice, exact_top_k


class TracedCorpus(struct.PyTreeNode):
    """Passages as hashes of their words (`word_hashes`, gathered by the numbers of words), without stop words.

    Words are compared by their 64-bit hashes only: a word of a query that is not in the corpus equals one of n
    different words of it with a probability of about n / 2^64.

    Attributes:
        hashes: u32[D, L, 2] words of each passage, in any order.
        sizes: i32[D] number of words of each; what follows is not read.
    """

    hashes: UInt32[Array, "D L 2"]
    sizes: Int32[Array, " D"]


def search(
    corpus: TracedCorpus, table: QueryTable, tokens: Int[Array, " K"], length: Int[Array, ""], k: int
) -> FoundOnDevice:
    """As `compiled_bm25.search`. The corpus may be traced, and mapped over together with the queries."""
    words = query_words(table, tokens, length)
    scores, known = bm25_scores(corpus, words)
    return exact_top_k(scores, known, k, words.cut)


def bm25_scores(corpus: TracedCorpus, words: Words) -> tuple[Float32[Array, " D"], Array]:
    """The score of each passage, and whether any passage has a word of the query."""
    number = len(corpus.sizes)
    has = jnp.arange(corpus.hashes.shape[1]) < corpus.sizes[:, None]
    damping = K1 * ((1 - B) + B * corpus.sizes / jnp.maximum(corpus.sizes.mean(), 1e-9))

    def add(place, state):
        scores, known = state
        times = (has & (corpus.hashes == words.hashes[place]).all(axis=-1)).sum(axis=1).astype(jnp.float32)
        having = (times > 0).sum()
        inverse = jnp.log(1 + (number - having + 0.5) / (having + 0.5))
        return scores + inverse * (times / jnp.maximum(damping + times, 1e-9)), known | (having > 0)

    return lax.fori_loop(0, words.number, add, (jnp.zeros(number, jnp.float32), jnp.bool_(False)))
