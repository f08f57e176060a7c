"""BM25 over a small corpus that is itself made in the program, as where words change with the world.

The formula is that of `compiled_bm25`, all in float32: scores differ from the package's in the last bits.
Shapes: `D` passages of at most `L` words.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, UInt32

from envs_jax.retrieval.characters import Words
from envs_jax.retrieval.compiled_bm25 import K1, B
from envs_jax.retrieval.top_k import FoundOnDevice, exact_top_k


def search(corpus: UInt32[Array, "D L 2"], words: Words, k: int) -> FoundOnDevice:
    """As `compiled_bm25.search`. The corpus may be traced, and mapped over together with the queries.

    Words are compared by their 64-bit hashes only: a word of a query that is not in the corpus equals one of n
    different words of it with a probability of about n / 2^64.

    Args:
        corpus: the hashes of the words of each passage (`word_hashes`), in any order, without stop words; (0, 0) for
            no word.
        words: of the query.
        k: number of passages.
    """
    has = (corpus != 0).any(axis=2)
    sizes = has.sum(axis=1)
    damping = K1 * ((1 - B) + B * sizes / jnp.maximum(sizes.mean(), 1e-9))

    def add(place, state):
        scores, known = state
        same = has & (corpus[..., 0] == words.hashes[place, 0]) & (corpus[..., 1] == words.hashes[place, 1])
        times = same.sum(axis=1).astype(jnp.float32)
        having = (times > 0).sum()
        inverse = jnp.log(1 + (len(corpus) - having + 0.5) / (having + 0.5))
        return scores + inverse * (times / jnp.maximum(damping + times, 1e-9)), known | (having > 0)

    scores, known = lax.fori_loop(0, words.number, add, (jnp.zeros(len(corpus), jnp.float32), jnp.bool_(False)))
    return exact_top_k(scores, known, k)
