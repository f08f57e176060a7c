"""Pre-tokenization on the device: how byte-level tokenizers split a text into words before they merge.

Two patterns are supported: that of GPT-2 (Radford et al. 2019) and that of cl100k, which Qwen2, Qwen3 and Llama 3 use
with different digits per word. A word's length follows from the ends of runs of letters, digits, marks and white space.

Shapes: `T` bytes of a row.
"""

import dataclasses
import unicodedata
from typing import Any

import jax
import jax.numpy as jnp

BORDER, LETTER, DIGIT, MARK, SPACE, BREAK, BLANK = range(7)
"""Kinds of bytes: a border that no word crosses; letters; digits; marks, which are none of the others; the space;
`\\n` and `\\r`; other white space."""

GPT2, CL100K = "gpt2", "cl100k"

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SUFFIXES = ("s", "t", "re", "ve", "m", "ll", "d")


@dataclasses.dataclass(frozen=True)
class Splitting:
    """Rule by which a text is split into words.

    Attributes:
        pattern: GPT2 or CL100K.
        digits: maximum digits of a word; 0 for no limit.
        digits_apart: each digit is split off first, and is a border for the pattern.
    """

    pattern: str
    digits: int = 0
    digits_apart: bool = False


def from_layout(layout: dict[str, Any]) -> Splitting:
    """Reads the splitting rule of a `tokenizer.json`.

    Raises:
        ValueError: the rule is not supported.
    """
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
            return Splitting(GPT2, digits_apart=True)
    elif plain and len(before) == 1 and before[0]["type"] == "Split" and before[0].get("behavior") == "Isolated":
        regex = before[0]["pattern"].get("Regex")
        for digits, times in ((1, ""), (3, "{1,3}")):
            if regex == _SPLIT.format(digits=times) and not before[0].get("invert"):
                return Splitting(CL100K, digits=digits)
    raise ValueError(
        f"the tokenizer splits text by {outer or 'nothing'} after normalization {normalizer}, for which there is no "
        "canonical encoder; use encoder pieces"
    )


def codes(character: str) -> list[int]:
    """Packs into one number for each byte of a character: its kind, the remaining bytes of the character, and the byte.

    Raises:
        ValueError: the character is white space or a number outside ASCII, or a mark that combines with a letter.
    """
    spelled = character.encode()
    category = unicodedata.category(character)
    if category[0] == "L":
        kind = LETTER
    elif character in "0123456789":
        kind = DIGIT
    elif character in "\r\n":
        kind = BREAK
    elif character == " ":
        kind = SPACE
    elif character in "\t\v\f":
        kind = BLANK
    elif category[0] in "NZM" or character in "\x1c\x1d\x1e\x1f\x85":
        raise ValueError(f"{character!r} has no place in a text that is encoded canonically; use encoder pieces")
    else:
        kind = MARK
    return [kind | left << 3 | byte << 6 for left, byte in zip(range(len(spelled), 0, -1), spelled)]


def words(codes: jax.Array, splitting: Splitting) -> jax.Array:
    """Number of the word that each byte belongs to.

    Args:
        codes: i32[T] from `codes`, or `BORDER`.
        splitting: the pattern.

    Returns:
        i32[T], ascending.
    """
    size = codes.shape[0]
    slots = jnp.arange(size)
    kind, left, letters = codes & 7, codes >> 3 & 7, codes >> 6
    inside = kind != BORDER
    if splitting.digits_apart:
        inside &= kind != DIGIT

    def run(member: jax.Array) -> jax.Array:
        """End (exclusive) of the run of members that begins at each position."""
        return jax.lax.cummin(jnp.where(member, size, slots), reverse=True)

    def at(values: jax.Array, position: jax.Array, beyond: Any) -> jax.Array:
        return jnp.where(position < size, values[jnp.minimum(position, size - 1)], beyond)

    white = (kind == SPACE) | (kind == BREAK) | (kind == BLANK)
    after = {of: run(kind == of) for of in (LETTER, DIGIT, MARK, BREAK)}
    after_white = run(white)
    # The last character of white space belongs to the word after it.
    shorter = at(inside, after_white, False) & (after_white > slots + 1)
    end = jnp.where(white, after_white - shorter, slots + jnp.maximum(left, 1))

    of_digits = jnp.minimum(after[DIGIT], slots + splitting.digits) if splitting.digits else after[DIGIT]
    second = jnp.where(kind == SPACE, slots + 1, slots)
    second_kind = at(kind, second, BORDER)
    if splitting.pattern == GPT2:
        for of, ends in ((MARK, after[MARK]), (DIGIT, of_digits), (LETTER, after[LETTER])):
            joined = (second_kind == of) & at(inside, second, False)
            end = jnp.where(joined, at(ends, second, size), end)
    else:
        lines = jax.lax.cummax(jnp.where(kind == BREAK, slots, -1))
        last_line = lines[jnp.maximum(after_white - 1, 0)]
        end = jnp.where(white & (last_line >= slots), last_line + 1, end)
        marks = at(after[MARK], second, size)
        breaks = jnp.where(at(kind, marks, BORDER) == BREAK, at(after[BREAK], marks, size), marks)
        end = jnp.where(second_kind == MARK, breaks, end)
        end = jnp.where(kind == DIGIT, of_digits, end)
        lead = slots + jnp.maximum(left, 1)
        leads = (kind == SPACE) | (kind == MARK) | (kind == BLANK)
        end = jnp.where(leads & (at(kind, lead, BORDER) == LETTER), at(after[LETTER], lead, size), end)
        end = jnp.where(kind == LETTER, after[LETTER], end)
    end = jnp.where(letters == ord("'"), _contraction(letters, splitting, end), end)
    return jnp.cumsum(_reached(jnp.where(kind == BORDER, slots + 1, end)))


def _contraction(letters: jax.Array, splitting: Splitting, end: jax.Array) -> jax.Array:
    """End of the word of an apostrophe if one of `_SUFFIXES` follows it; otherwise `end`."""
    if splitting.pattern == CL100K:
        letters = jnp.where((letters >= ord("A")) & (letters <= ord("Z")), letters + 32, letters)
    slots = jnp.arange(letters.shape[0])
    following = [jnp.concatenate([letters[n:], jnp.full(n, -1, letters.dtype)]) for n in (1, 2)]
    for suffix in reversed(_SUFFIXES):
        same = [row == ord(letter) for row, letter in zip(following, suffix)]
        end = jnp.where(same[0] if len(same) == 1 else same[0] & same[1], slots + 1 + len(suffix), end)
    return end


def _reached(end: jax.Array) -> jax.Array:
    """Positions bool[T] at which words begin: the first at 0, each other at the `end` i32[T] of the one before."""
    size = end.shape[0]
    jump = jnp.append(end, size)
    begins = jnp.zeros(size + 1, bool).at[0].set(True)
    # After n rounds the beginnings of the first 2^n words are marked, and `jump` skips 2^n words.
    for _ in range(size.bit_length()):
        begins = begins | jnp.zeros_like(begins).at[jump].max(begins)
        jump = jump[jump]
    return begins[:size]
