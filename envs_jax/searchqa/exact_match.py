"""Exact match of answers as SQuAD's evaluation defines it (Rajpurkar et al. 2016), in the compiled program.

In lower case, without ASCII punctuation and without the words a, an and the, with single spaces, both texts are equal.
Bytes that are not UTF-8 count as U+FFFD.

Shapes: `L` bytes of an answer, `G` characters of a right one.
"""

import string

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32, UInt32

from envs_jax.retrieval.characters import Characters
from envs_jax.retrieval.unicode_table import SECOND

ARTICLES = ("a", "an", "the")
_SPACE = ord(" ")
_PUNCTUATION = np.array([chr(code) in string.punctuation for code in range(128)])
_WORD, _IS_SPACE, _CODE = np.uint32(1 << 21), np.uint32(1 << 22), np.uint32((1 << 21) - 1)


def normalized(answer: Characters) -> tuple[UInt32[Array, " L"], Int32[Array, ""]]:
    """The characters of an answer in SQuAD's normal form, padded with 0, and their number."""
    size = answer.lower.shape[0]
    index = jnp.arange(size)
    punctuation = (answer.lower < 128) & jnp.asarray(_PUNCTUATION)[jnp.minimum(answer.lower, 127)]
    kept = (index < answer.number) & ~punctuation
    # A character with two in lower case has two bytes, so that all have room; its second is written first, everywhere.
    ends = jnp.cumsum(kept * (1 + answer.doubled))
    place = jnp.where(kept, ends - 1 - answer.doubled, size)
    coded = answer.lower | jnp.where(answer.word, _WORD, 0) | jnp.where(answer.space, _IS_SPACE, 0)
    coded = jnp.full(size, SECOND, jnp.uint32).at[place].set(coded.astype(jnp.uint32), mode="drop")
    inside = index < ends[-1]
    text, word = coded & _CODE, (coded & _WORD).astype(bool) & inside
    space = ((coded & _IS_SPACE) > 0) | _articles(text, word)
    solid = inside & ~space
    # A space stays directly after a word, unless nothing follows.
    last = jnp.max(jnp.where(solid, index, -1))
    single = space & jnp.pad(solid, (1, 0))[:-1] & (index < last)
    kept = solid | single
    place = jnp.where(kept, jnp.cumsum(kept) - 1, size)
    text = jnp.where(space, jnp.uint32(_SPACE), text)
    return jnp.zeros(size, jnp.uint32).at[place].set(text, mode="drop"), jnp.sum(kept, dtype=jnp.int32)


def equals(
    found: UInt32[Array, " L"], size: Int32[Array, ""], gold: Int[Array, " G"], gold_length: Int32[Array, ""]
) -> Bool[Array, ""]:
    """Whether two texts in normal form are equal, of which the second may be longer than L."""
    wide = jnp.pad(found, (0, max(gold.shape[0] - found.shape[0], 0)))[: gold.shape[0]]
    same = jnp.all((wide == gold) | (jnp.arange(gold.shape[0]) >= gold_length))
    return same & (size == gold_length)


def _articles(text: UInt32[Array, " L"], word: Bool[Array, " L"]) -> Bool[Array, " L"]:
    """Where articles are, which are whole words."""
    size = text.shape[0]
    begins = word & ~jnp.pad(word, (1, 0))[:-1]
    gone = jnp.zeros(size, bool)
    for article in ARTICLES:
        here = begins & ~jnp.pad(word, (0, len(article)))[len(article) :]
        for shift, letter in enumerate(article):
            here &= jnp.pad(text, (0, shift))[shift:] == ord(letter)
        for shift in range(len(article)):
            gone |= jnp.pad(here, (shift, 0))[:size]
    return gone
