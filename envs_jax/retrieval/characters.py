"""From the bytes of a text to its characters in lower case, and to words and their hashes, on the device.

The text is `data.decode("utf-8", "replace").lower()`, and words are those of `words.WORD`, stop words included.
Shapes: `B` bytes at most, `W` words at most, of two bytes and a gap.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, Int32, UInt8, UInt32

from envs_jax.retrieval.unicode_table import (
    BREAK,
    CASED,
    FINAL_SIGMA,
    IGNORABLE,
    SHIFT,
    SIGMA,
    SMALL_SIGMA,
    SPACE,
    WORD,
    UnicodeTable,
    unicode_table,
)
from envs_jax.retrieval.words import character_terms

_REPLACEMENT = 0xFFFD
"""What bytes are replaced by that are not UTF-8; no word character."""


class Characters(NamedTuple):
    """A text in lower case, as `str.lower` has it.

    Attributes:
        lower: u32[B] the first character of the lower case of each.
        word: bool[B] whether it is a word character.
        doubled: bool[B] whether `unicode_table.SECOND` follows it, which is no word character.
        space: bool[B] whether it is white space.
        number: i32 number of characters; no flag is set beyond it.
    """

    lower: UInt32[Array, " B"]
    word: Bool[Array, " B"]
    doubled: Bool[Array, " B"]
    space: Bool[Array, " B"]
    number: Int32[Array, ""]


class Words(NamedTuple):
    """The words of a query, in order.

    Attributes:
        hashes: u32[W, 2] as `word_hashes`.
        begins: i32[W] the place of the first character of each in `characters`.
        sizes: i32[W] characters of each; 0 beyond `number`.
        number: i32 number of words.
        characters: u32[B] the characters of the query in lower case.
    """

    hashes: UInt32[Array, "W 2"]
    begins: Int32[Array, " W"]
    sizes: Int32[Array, " W"]
    number: Int32[Array, ""]
    characters: UInt32[Array, " B"]


def read(data: Int[Array, " B"] | UInt8[Array, " B"], total: Int[Array, ""]) -> Characters:
    """The characters of the first `total` of B bytes, of all where it is more."""
    return lowered(unicode_table(), *decoded(data.astype(jnp.int32), total))


def decoded(data: Int32[Array, " B"], total: Int32[Array, ""]) -> tuple[Array, Array]:
    """The characters of the first `total` bytes as UTF-8: code points i32[B], U+FFFD beyond the end; their number i32.

    Bytes that are not UTF-8 become U+FFFD as in Python and in the Unicode standard (3.9, "maximal subparts"): one for
    each longest beginning of a character, and one for each other byte. A lead byte is never inside another character,
    so that every byte is decided by the three before and after it.
    """
    place = jnp.arange(len(data))
    data = jnp.where(place < total, data, 0)
    second, third, fourth = (jnp.pad(data[shift:], (0, shift)) for shift in (1, 2, 3))
    wanted = jnp.select([data < 0xC2, data < 0xE0, data < 0xF0, data < 0xF5], [1, 2, 3, 4], 1)
    lowest = jnp.select([data == 0xE0, data == 0xF0], [0xA0, 0x90], 0x80)
    highest = jnp.select([data == 0xED, data == 0xF4], [0x9F, 0x8F], 0xBF)
    two = (wanted > 1) & (second >= lowest) & (second <= highest)
    three = two & (wanted > 2) & (third >> 6 == 0b10)
    four = three & (wanted > 3) & (fourth >> 6 == 0b10)
    span = 1 + two.astype(jnp.int32) + three + four
    inside = sum((jnp.pad(span[:-back], (back, 0), constant_values=1) > back).astype(jnp.int32) for back in (1, 2, 3))
    begins = (inside == 0) & (place < total)
    code = jnp.select(
        [(data < 0x80), wanted != span, wanted == 2, wanted == 3, wanted == 4],
        [
            data,
            _REPLACEMENT,
            (data & 0x1F) << 6 | second & 0x3F,
            (data & 0x0F) << 12 | (second & 0x3F) << 6 | third & 0x3F,
            (data & 0x07) << 18 | (second & 0x3F) << 12 | (third & 0x3F) << 6 | fourth & 0x3F,
        ],
        _REPLACEMENT,
    )
    target = jnp.where(begins, jnp.cumsum(begins) - 1, len(data))
    return jnp.full_like(data, _REPLACEMENT).at[target].set(code, mode="drop"), begins.sum()


def lowered(table: UnicodeTable, characters: Int32[Array, " B"], number: Int32[Array, ""]) -> Characters:
    """The first `number` characters in lower case; what follows them has to be U+FFFD."""
    entry = jnp.asarray(table.entries)[jnp.asarray(table.block)[characters >> 8], characters & 0xFF]
    cased, ignorable = (entry & CASED) > 0, (entry & IGNORABLE) > 0
    place = jnp.arange(len(characters))
    before = jnp.pad(lax.cummax(jnp.where(ignorable, -1, place)), (1, 0), constant_values=-1)[:-1]
    after = jnp.pad(lax.cummin(jnp.where(ignorable, len(place), place), reverse=True), (0, 1))[1:]
    after = jnp.where(place == len(place) - 1, len(place), after)
    final = (before >= 0) & cased[jnp.maximum(before, 0)]
    final &= ~((after < len(place)) & cased[jnp.minimum(after, len(place) - 1)])
    lower = characters.astype(jnp.uint32) + entry & SHIFT
    lower = jnp.where(characters == SIGMA, jnp.where(final, FINAL_SIGMA, SMALL_SIGMA).astype(jnp.uint32), lower)
    word, doubled, space = ((entry & bit) > 0 for bit in (WORD, BREAK, SPACE))
    return Characters(lower=lower, word=word, doubled=doubled, space=space, number=number)


def words_in(text: Characters) -> Words:
    """The words of a text."""
    goes_on = jnp.pad((text.word & ~text.doubled)[:-1], (1, 0)) & text.word
    place = jnp.arange(len(text.lower))
    begin = lax.cummax(jnp.where(text.word & ~goes_on, place, 0))
    size = place - begin + 1
    ends = text.word & ~jnp.pad(goes_on[1:], (0, 1)) & (size > 1)

    terms = jnp.stack(character_terms(text.lower, (place - begin).astype(jnp.uint32)), axis=1)
    sums = jnp.pad(jnp.cumsum(terms, axis=0, dtype=jnp.uint32), ((1, 0), (0, 0)))
    slots = (len(place) + 1) // 3
    target = jnp.where(ends, jnp.cumsum(ends) - 1, slots)

    def compact(values: Array) -> Array:
        return jnp.zeros((slots, *values.shape[1:]), values.dtype).at[target].set(values, mode="drop")

    return Words(
        hashes=compact(sums[1:] - sums[begin]),
        begins=compact(begin),
        sizes=compact(size),
        number=ends.sum(),
        characters=text.lower,
    )
