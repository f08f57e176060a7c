"""Exact match of answers as SQuAD's evaluation defines it (Rajpurkar et al. 2016), on bytes in the compiled program.

In lower case, without punctuation and without the words a, an and the, with single spaces, both texts are equal. The
text of a sampled answer can be anything, the right one is ASCII. So a character outside of ASCII makes them differ,
unless it is white space, or the Kelvin sign, which is a k in lower case.

Shapes: `L` bytes of an answer.
"""

import string

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt8

from envs_jax.searchqa.search import is_word

_SPACE, _OTHER = ord(" "), 0xFF
_PUNCTUATION = np.array([chr(byte) in string.punctuation for byte in range(256)])
_SPACES = [chr(code) for code in range(0x3001) if chr(code).isspace()]
_ASCII = np.array(
    [_OTHER if byte > 127 else _SPACE if chr(byte) in _SPACES else ord(chr(byte).lower()) for byte in range(256)],
    np.uint8,
)
"""What is read for a byte."""
_REPLACED = {character.encode(): _SPACE for character in _SPACES if not character.isascii()} | {
    "\N{KELVIN SIGN}".encode(): ord("k")
}
"""What is read for a character of several bytes."""

ARTICLES = (b"a", b"an", b"the")


def normalized(answer: UInt8[Array, " L"], length: Int32[Array, ""]) -> tuple[UInt8[Array, " L"], Int32[Array, ""]]:
    """The first `length` bytes of an answer in SQuAD's normal form, padded with 0, and how many bytes it has.

    A character outside of ASCII that stays is one or more bytes 0xFF.
    """
    size = answer.shape[0]
    inside = jnp.arange(size) < length
    read, kept = jnp.asarray(_ASCII)[answer], inside
    ahead = [jnp.pad(jnp.where(inside, answer, 0), (0, shift))[shift:] for shift in range(3)]
    for spelled, byte in _REPLACED.items():
        here = jnp.all(jnp.stack([row == part for row, part in zip(ahead, spelled)]), axis=0) & inside
        read = jnp.where(here, jnp.uint8(byte), read)
        for shift in range(1, len(spelled)):
            kept &= ~jnp.pad(here, (shift, 0))[:size]
    text, length = _packed(read, kept & ~jnp.asarray(_PUNCTUATION)[read])
    text = _without_articles(text)
    index = jnp.arange(size)
    solid = (text != _SPACE) & (index < length)
    # A space stays directly after a word, unless nothing follows.
    last = jnp.max(jnp.where(solid, index, -1))
    single = (text == _SPACE) & jnp.pad(solid, (1, 0))[:-1] & (index < last)
    return _packed(text, solid | single)


def exact_match(
    answer: UInt8[Array, " L"], length: Int32[Array, ""], gold: UInt8[Array, " G"], gold_length: Int32[Array, ""]
) -> Bool[Array, ""]:
    """Whether an answer is the right one, which is given in normal form. One of more than L bytes never is."""
    found, size = normalized(answer, length)
    wide = jnp.pad(found, (0, max(gold.shape[0] - found.shape[0], 0)))[: gold.shape[0]]
    same = jnp.all((wide == gold) | (jnp.arange(gold.shape[0]) >= gold_length))
    return same & (size == gold_length) & (length <= answer.shape[0])


def _packed(text: UInt8[Array, " L"], kept: Bool[Array, " L"]) -> tuple[UInt8[Array, " L"], Int32[Array, ""]]:
    place = jnp.where(kept, jnp.cumsum(kept) - 1, text.shape[0])
    return jnp.zeros_like(text).at[place].set(text, mode="drop"), jnp.sum(kept, dtype=jnp.int32)


def _without_articles(text: UInt8[Array, " L"]) -> UInt8[Array, " L"]:
    """Writes a space for each article; the bytes after the text are 0, which ends a word."""
    size = text.shape[0]
    # A character outside of ASCII may belong to a word; such an answer is wrong anyway.
    part = is_word(text)
    begins = part & ~jnp.pad(part, (1, 0))[:-1]
    gone = jnp.zeros(size, bool)
    for article in ARTICLES:
        ahead = [jnp.pad(text, (0, shift))[shift:] for shift in range(len(article))]
        ends = ~jnp.pad(part, (0, len(article)))[len(article) :]
        here = begins & ends & jnp.all(jnp.stack([row == byte for row, byte in zip(ahead, article)]), axis=0)
        for shift in range(len(article)):
            gone |= jnp.pad(here, (shift, 0))[:size]
    return jnp.where(gone, jnp.uint8(_SPACE), text)
