"""Words of a text as the package bm25s cuts them, and their hashes, the same on the host and on the device."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt32

from envs_jax.errors import BadValue

WORD = re.compile(r"(?u)\b\w\w+\b")
"""The token pattern of bm25s (and of scikit-learn): at least two letters, digits or underscores."""

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
        "this to was will with",
    )
)
"""The English stop words of Lucene, which bm25s has as `en`."""

_FACTORS = ((0x85EBCA6B, 0xC2B2AE35), (0x7FEB352D, 0x846CA68B))
"""Multipliers of two 32-bit finalizers: MurmurHash3, and that of C. Wellons (hash-prospector)."""


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without stop words, in order."""
    return [word for word in WORD.findall(text.lower()) if word not in STOP_WORDS]


def character_terms(characters: Any, places: Any) -> tuple[Any, Any]:
    """Two u32 terms of each character, given its code point and its place in the word, both u32 of one shape.

    The hash of a word is the sum of its terms modulo 2^32, twice: a tabulation hash. Works on arrays of NumPy and JAX.
    """
    terms = []
    for first, second in _FACTORS:
        x = (characters ^ (places << np.uint32(21))) + np.uint32(first)
        x = (x ^ (x >> np.uint32(16))) * np.uint32(first)
        x = (x ^ (x >> np.uint32(13))) * np.uint32(second)
        terms.append(x ^ (x >> np.uint32(16)))
    return terms[0], terms[1]


def code_points(words: Sequence[str]) -> tuple[UInt32[np.ndarray, " C"], np.ndarray]:
    """The code points of all words, and where each begins, with the end of the last: i64[words + 1]."""
    starts = np.cumsum([0, *map(len, words)])
    return np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), np.uint32), starts


def word_hashes(words: Sequence[str]) -> UInt32[np.ndarray, "N 2"]:
    """The 64-bit hash of each word, as two u32."""
    if not all(words):
        raise BadValue("an empty word in words has no hash", "words")
    characters, starts = code_points(words)
    places = np.arange(len(characters)) - np.repeat(starts[:-1], np.diff(starts))
    terms = character_terms(characters, places.astype(np.uint32))
    return np.stack([np.add.reduceat(term, starts[:-1], dtype=np.uint32) for term in terms], axis=1)
