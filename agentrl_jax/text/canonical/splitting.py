"""Pre-tokenization on the device: how byte-level tokenizers split a text into words before they merge.

Two patterns are supported: that of GPT-2 (Radford et al. 2019) and that of cl100k, which Qwen2, Qwen3 and Llama 3 use
with different digits per word. A word's length follows from the ends of runs of letters, digits, white space and other
characters.
Shapes: `T` bytes of a row.
"""

import dataclasses
import unicodedata
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from agentrl_jax.errors import BadValue

SEPARATOR, LETTER, DIGIT, OTHER, SPACE, NEWLINE, OTHER_WHITESPACE = range(7)
"""Kinds of bytes: a separator that no word crosses; letters; digits; characters of no other kind; the space; `\\n` and
`\\r`; other white space."""

_KINDS = dict.fromkeys("0123456789", DIGIT) | dict.fromkeys("\r\n", NEWLINE) | dict.fromkeys("\t\v\f", OTHER_WHITESPACE)
_KINDS[" "] = SPACE

GPT2, CL100K = "gpt2", "cl100k"

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SUFFIXES = ("s", "t", "re", "ve", "m", "ll", "d")


@dataclasses.dataclass(frozen=True)
class Splitting:
    """Rule by which a text is split into words: the pattern, GPT2 or CL100K, and how it treats digits."""

    pattern: str
    max_digits: int = 0
    """Maximum digits of a word; 0 for no limit."""
    individual_digits: bool = False
    """Each digit is split off first, and separates words for the pattern."""


def from_layout(layout: dict[str, Any]) -> Splitting:
    """Reads the splitting rule of a `tokenizer.json`; ValueError if it is not supported."""
    outer = layout.get("pre_tokenizer") or {}
    steps = outer.get("pretokenizers", [outer])
    normalizer = (layout.get("normalizer") or {}).get("type")
    last = steps[-1]
    plain = last.get("type") == "ByteLevel" and not last.get("add_prefix_space") and normalizer in (None, "NFC")
    before = steps[:-1]
    if plain and last.get("use_regex", True):
        if not before:
            return Splitting(GPT2)
        if len(before) == 1 and before[0]["type"] == "Digits" and before[0].get("individual_digits"):
            return Splitting(GPT2, individual_digits=True)
    elif plain and len(before) == 1 and before[0]["type"] == "Split" and before[0].get("behavior") == "Isolated":
        regex = before[0]["pattern"].get("Regex")
        for max_digits, quantifier in ((1, ""), (3, "{1,3}")):
            if regex == _SPLIT.format(digits=quantifier) and not before[0].get("invert"):
                return Splitting(CL100K, max_digits=max_digits)
    raise BadValue(
        f"the tokenizer splits text by {outer or 'nothing'} after normalization {normalizer}, for which there is no "
        "canonical encoder; set prompt.encoder to pieces",
        key="tokenizer",
        value=normalizer,
    )


def codes(character: str) -> list[int]:
    """Packs into one number for each byte of a character: its kind, the remaining bytes of the character, and the byte.

    Raises:
        ValueError: the character is white space or a number outside ASCII, or a mark that combines with a letter.
    """
    encoded = character.encode()
    category = unicodedata.category(character)[0]
    kind = LETTER if category == "L" else _KINDS.get(character, OTHER)
    if kind == OTHER and (category in "NZM" or character in "\x1c\x1d\x1e\x1f\x85"):
        raise BadValue(
            f"the canonical encoder does not support the character {character!r}; set prompt.encoder to pieces",
            key="character",
            value=character,
        )
    return [kind | remaining << 3 | byte << 6 for remaining, byte in zip(range(len(encoded), 0, -1), encoded)]


def words(packed: Int[Array, " T"], splitting: Splitting) -> Int[Array, " T"]:
    """Returns the number of the word that each byte belongs to, ascending, given `codes` or `SEPARATOR` for each."""
    size = packed.shape[0]
    positions = jnp.arange(size)
    kind, remaining, byte = packed & 7, packed >> 3 & 7, packed >> 6
    inside = kind != SEPARATOR
    if splitting.individual_digits:
        inside &= kind != DIGIT

    def run_end(member: jax.Array) -> jax.Array:
        """Returns the end (exclusive) of the run of members that begins at each position."""
        return jax.lax.cummin(jnp.where(member, size, positions), reverse=True)

    def at(values: jax.Array, position: jax.Array, default: Any) -> jax.Array:
        return jnp.where(position < size, values[jnp.minimum(position, size - 1)], default)

    white = (kind == SPACE) | (kind == NEWLINE) | (kind == OTHER_WHITESPACE)
    after = {each: run_end(kind == each) for each in (LETTER, DIGIT, OTHER, NEWLINE)}
    after_white = run_end(white)
    # A run of white space before other text ends one character early; a final space may join the next word, and any
    # other character stays a word (GPT-2) or joins letters (cl100k, whose words of white space end after newlines).
    ends_early = at(inside, after_white, False) & (after_white > positions + 1)
    end = jnp.where(white, after_white - ends_early, positions + jnp.maximum(remaining, 1))

    if splitting.max_digits:
        after[DIGIT] = jnp.minimum(after[DIGIT], positions + splitting.max_digits)
    after_optional_space = jnp.where(kind == SPACE, positions + 1, positions)
    kind_after_space = at(kind, after_optional_space, SEPARATOR)
    if splitting.pattern == GPT2:
        for each in (OTHER, DIGIT, LETTER):
            joined = (kind_after_space == each) & at(inside, after_optional_space, False)
            end = jnp.where(joined, at(after[each], after_optional_space, size), end)
    else:
        last_newline_so_far = jax.lax.cummax(jnp.where(kind == NEWLINE, positions, -1))
        last_newline = last_newline_so_far[jnp.maximum(after_white - 1, 0)]
        end = jnp.where(white & (last_newline >= positions), last_newline + 1, end)
        symbols_end = at(after[OTHER], after_optional_space, size)
        newlines_end = jnp.where(
            at(kind, symbols_end, SEPARATOR) == NEWLINE, at(after[NEWLINE], symbols_end, size), symbols_end
        )
        end = jnp.where(kind_after_space == OTHER, newlines_end, end)
        end = jnp.where(kind == DIGIT, after[DIGIT], end)
        next_character = positions + jnp.maximum(remaining, 1)
        joins = ((kind == SPACE) | (kind == OTHER) | (kind == OTHER_WHITESPACE)) & (
            at(kind, next_character, SEPARATOR) == LETTER
        )
        end = jnp.where(joins, at(after[LETTER], next_character, size), end)
        end = jnp.where(kind == LETTER, after[LETTER], end)
    end = jnp.where(byte == ord("'"), _contraction(byte, splitting, end), end)
    return jnp.cumsum(_word_starts(jnp.where(kind == SEPARATOR, positions + 1, end)))


def _contraction(byte: Int[Array, " T"], splitting: Splitting, end: Int[Array, " T"]) -> Int[Array, " T"]:
    """Returns the end of the word of an apostrophe if one of `_SUFFIXES` follows it; otherwise `end`."""
    if splitting.pattern == CL100K:
        byte = jnp.where((byte >= ord("A")) & (byte <= ord("Z")), byte + 32, byte)
    positions = jnp.arange(byte.shape[0])
    following = [jnp.concatenate([byte[n:], jnp.full(n, -1, byte.dtype)]) for n in (1, 2)]
    for suffix in reversed(_SUFFIXES):
        same = [row == ord(letter) for row, letter in zip(following, suffix)]
        end = jnp.where(same[0] if len(same) == 1 else same[0] & same[1], positions + 1 + len(suffix), end)
    return end


def _word_starts(end: Int[Array, " T"]) -> Bool[Array, " T"]:
    """Returns where words begin: the first at 0, each other at the `end` of the one before."""
    size = end.shape[0]
    jump = jnp.append(end, size)
    begins = jnp.zeros(size + 1, bool).at[0].set(True)
    # After n rounds the beginnings of the first 2^n words are marked, and `jump` skips 2^n words.
    for _ in range(size.bit_length()):
        begins = begins | jnp.zeros_like(begins).at[jump].max(begins)
        jump = jump[jump]
    return begins[:size]
