"""Words of a query and a lexical search, both in the compiled program.

Shapes: `N` passages, `W` words of a passage, `L` bytes of a query, `Q` words of a query, `K` results.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32, UInt8, UInt32

from envs_jax.searchqa import text
from envs_jax.searchqa.world import World

K1, B = 1.5, 0.75
"""Saturation of repeated words, and how much long passages lose."""

QUERY_WORDS = 16
"""Most words of a query that are read."""


def words_of(query: UInt8[Array, " L"]) -> UInt32[Array, "{QUERY_WORDS}"]:
    """The hashes of the first words of a query in lower case; 0 for none. Words are ASCII letters and digits."""
    upper = (query >= ord("A")) & (query <= ord("Z"))
    lowered = jnp.where(upper, query + 32, query)
    inside = is_word(lowered)
    begins = inside & ~jnp.pad(inside, (1, 0))[:-1]
    index = jnp.arange(query.shape[0])
    place = index - jax.lax.cummax(jnp.where(begins, index, 0))
    terms = (lowered.astype(jnp.uint32) + 1) * jnp.asarray(text.HASH_POWERS)[jnp.minimum(place, 255)]
    number = jnp.where(inside, jnp.cumsum(begins) - 1, QUERY_WORDS)
    total = jnp.zeros(QUERY_WORDS, jnp.uint32).at[number].add(terms, mode="drop")
    exists = jnp.arange(QUERY_WORDS) < jnp.sum(begins)
    return jnp.where(exists, jnp.where(total == 0, jnp.uint32(1), total), jnp.uint32(0))


def is_word(byte: UInt8[Array, " L"]) -> Bool[Array, " L"]:
    """Whether bytes in lower case are ASCII letters or digits."""
    return ((byte >= ord("a")) & (byte <= ord("z"))) | ((byte >= ord("0")) & (byte <= ord("9")))


def bm25(world: World, query: UInt32[Array, " Q"], results: int) -> Int32[Array, " K"]:
    """The passages with the highest BM25 scores (Robertson and Zaragoza 2009; Lucene's inverse document frequency).

    Equal scores: the lower number first. Passages without a word of the query are not found: -1. With fewer than K
    passages, the others are -1 too.
    """
    counts = jnp.sum(world.words[:, None, :] == query[:, None], axis=2) * (query > 0)
    lengths = jnp.sum(world.words > 0, axis=1, dtype=jnp.float32)
    frequency = jnp.sum(counts > 0, axis=0, dtype=jnp.float32)
    rarity = jnp.log1p((len(lengths) - frequency + 0.5) / (frequency + 0.5))
    room = K1 * (1 - B + B * lengths / jnp.mean(lengths))
    scores = jnp.sum(rarity * counts / (counts + room[:, None]), axis=1)
    best, found = jax.lax.top_k(scores, min(results, len(lengths)))
    found = jnp.where(best > 0, found, -1).astype(jnp.int32)
    return jnp.pad(found, (0, results - found.shape[0]), constant_values=-1)
