"""From the policy's tokens to the words of a query, on the device: token, bytes, characters, words, hashes.

The words are those of `words.words_of(data.decode("utf-8", "replace"))`, stop words included, where `data` is what the
tokens spell. Shapes: `K` tokens of a query, `B` bytes at most, `W` words at most, of two bytes and a gap.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Int, Int32, UInt8, UInt32

from agentrl_jax.errors import BadValue
from agentrl_jax.retrieval.unicode_table import (
    BREAK,
    CASED,
    FINAL_SIGMA,
    IGNORABLE,
    SHIFT,
    SIGMA,
    SMALL_SIGMA,
    WORD,
    UnicodeTable,
    unicode_table,
)
from agentrl_jax.retrieval.words import character_terms

_REPLACEMENT = 0xFFFD
"""What bytes are replaced by that are not UTF-8; no word character."""


class QueryTable(struct.PyTreeNode):
    """What reads a query: the bytes of token t are `data[offsets[t]:offsets[t + 1]]`.

    Attributes:
        max_bytes: B; a query with more bytes is cut, and says so.
    """

    data: UInt8[Array, " M"]
    offsets: Int32[Array, " V+1"]
    unicode: UnicodeTable
    max_bytes: int = struct.field(pytree_node=False)


class Words(NamedTuple):
    """The words of a query, in order.

    Attributes:
        hashes: u32[W, 2] as `word_hashes`.
        begins: i32[W] the place of the first character of each in `characters`.
        sizes: i32[W] characters of each; 0 beyond `number`.
        number: i32 number of words.
        characters: u32[B] the characters of the query in lower case.
        cut: bool, whether the query has more than B bytes; only the first B count.
    """

    hashes: UInt32[Array, "W 2"]
    begins: Int32[Array, " W"]
    sizes: Int32[Array, " W"]
    number: Int32[Array, ""]
    characters: UInt32[Array, " B"]
    cut: Bool[Array, ""]


def make_query_table(token_bytes: Sequence[bytes | None], max_bytes: int) -> QueryTable:
    """The table of a tokenizer whose token t spells `token_bytes[t]`; None for a special token, which spells nothing.

    Raises:
        BadValue: `max_bytes` is less than 3.
    """
    if max_bytes < 3:
        raise BadValue.of("max_bytes", max_bytes, "expected at least 3, for one word")
    rows = [data or b"" for data in token_bytes]
    return QueryTable(
        data=jnp.frombuffer(b"".join(rows) or b"\0", jnp.uint8),
        offsets=jnp.array(np.cumsum([0, *map(len, rows)]), jnp.int32),
        unicode=unicode_table(),
        max_bytes=max_bytes,
    )


def spelled(table: QueryTable, tokens: Int[Array, " K"], length: Int[Array, ""]) -> tuple[Array, Array]:
    """The bytes of the first `length` tokens: i32[B], 0 beyond the end; and their number i32, which may exceed B."""
    sizes = jnp.where(jnp.arange(len(tokens)) < length, table.offsets[tokens + 1] - table.offsets[tokens], 0)
    ends = jnp.cumsum(sizes)
    place = jnp.arange(table.max_bytes)
    token = jnp.minimum(jnp.searchsorted(ends, place, side="right"), len(tokens) - 1)
    source = table.offsets[tokens[token]] + place - (ends - sizes)[token]
    data = table.data[jnp.clip(source, 0, len(table.data) - 1)].astype(jnp.int32)
    return jnp.where(place < ends[-1], data, 0), ends[-1]


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


def lowered(table: UnicodeTable, characters: Int32[Array, " B"]) -> tuple[Array, Array, Array]:
    """Characters as `str.lower` has them.

    Returns:
        u32[B] the first character in lower case; bool[B] whether it is in a word; bool[B] whether it ends a word,
        because another character follows in lower case.
    """
    entry = table.entries[table.block[characters >> 8], characters & 0xFF]
    cased, ignorable = (entry & CASED) > 0, (entry & IGNORABLE) > 0
    place = jnp.arange(len(characters))
    before = jnp.pad(lax.cummax(jnp.where(ignorable, -1, place)), (1, 0), constant_values=-1)[:-1]
    after = jnp.pad(lax.cummin(jnp.where(ignorable, len(place), place), reverse=True), (0, 1))[1:]
    after = jnp.where(place == len(place) - 1, len(place), after)
    final = (before >= 0) & cased[jnp.maximum(before, 0)]
    final &= ~((after < len(place)) & cased[jnp.minimum(after, len(place) - 1)])
    lower = characters.astype(jnp.uint32) + entry & SHIFT
    lower = jnp.where(characters == SIGMA, jnp.where(final, FINAL_SIGMA, SMALL_SIGMA).astype(jnp.uint32), lower)
    return lower, (entry & WORD) > 0, (entry & BREAK) > 0


def query_words(table: QueryTable, tokens: Int[Array, " K"], length: Int[Array, ""]) -> Words:
    """The words of the first `length` of some tokens; others, and special tokens, spell nothing.

    Args:
        table: of the tokenizer.
        tokens: i32[K], each a token of the tokenizer, also beyond `length`; K at least 1.
        length: i32.
    """
    data, total = spelled(table, tokens, length)
    characters, _ = decoded(data, total)
    lower, in_word, ends_word = lowered(table.unicode, characters)
    goes_on = jnp.pad((in_word & ~ends_word)[:-1], (1, 0)) & in_word
    place = jnp.arange(len(characters))
    begin = lax.cummax(jnp.where(in_word & ~goes_on, place, 0))
    size = place - begin + 1
    word = in_word & ~jnp.pad(goes_on[1:], (0, 1)) & (size > 1)

    terms = jnp.stack(character_terms(lower, (place - begin).astype(jnp.uint32)), axis=1)
    sums = jnp.pad(jnp.cumsum(terms, axis=0, dtype=jnp.uint32), ((1, 0), (0, 0)))
    slots = (table.max_bytes + 1) // 3
    target = jnp.where(word, jnp.cumsum(word) - 1, slots)

    def compact(values: Array) -> Array:
        return jnp.zeros((slots, *values.shape[1:]), values.dtype).at[target].set(values, mode="drop")

    return Words(
        hashes=compact(sums[1:] - sums[begin]),
        begins=compact(begin),
        sizes=compact(size),
        number=word.sum(),
        characters=lower,
        cut=total > table.max_bytes,
    )
