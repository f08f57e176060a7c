"""What the running Python knows about characters, as a table for the device: lower case, and what a word is made of.

The table is taken from methods of `str`, so that it is of the same version of Unicode as texts on the host.
"""

import functools
import sys
from typing import NamedTuple
from unicodedata import category

import numpy as np
from jaxtyping import Int32, UInt32

SIGMA, FINAL_SIGMA, SMALL_SIGMA = 0x3A3, 0x3C2, 0x3C3
"""The one letter whose lower case depends on its neighbors (Unicode, Final_Sigma)."""

SHIFT = (1 << 21) - 1
"""Bits of an entry that hold the code point in lower case minus that of the character, modulo 2^21."""
WORD, BREAK, CASED, IGNORABLE, SPACE = (1 << bit for bit in (21, 22, 23, 24, 25))
"""Bits of an entry: the lower case is a word character; it is followed by `SECOND`, which is none, as for U+0130; the
character is cased; it is skipped in the search for cased neighbors; it is white space, as `str.split` has it."""

SECOND = 0x307
"""The second character of a lower case that has two (combining dot above)."""

_BLOCK = 256
_BARE = frozenset({"Cn", "Co", "Cs"})
"""Categories of characters without case that are in no word: unassigned, private, surrogate."""


class UnicodeTable(NamedTuple):
    """The entry of code point c is `entries[block[c // 256], c % 256]`."""

    block: Int32[np.ndarray, " B"]
    entries: UInt32[np.ndarray, "E 256"]


@functools.cache
def unicode_table() -> UnicodeTable:
    """The table of the running Python, kept after the first time, which takes about half a second.

    Raises:
        RuntimeError: a character becomes several in lower case, the second of which is not `SECOND`; none does in
            Unicode 16.
    """
    letters = [letter for code in range(1, sys.maxunicode + 1) if category(letter := chr(code)) not in _BARE]
    lower = [letter.lower() for letter in letters]
    if found := {each[1:] for each in lower} - {"", chr(SECOND)}:
        raise RuntimeError(f"{found} follow another character in lower case; unicode_table.py does not know such ones")
    cased = _before_final_sigma(letters)
    bits = {
        WORD: np.array([letter[0].isalnum() or letter[0] == "_" for letter in lower]),
        BREAK: np.array([len(each) > 1 for each in lower]),
        CASED: cased,
        SPACE: np.array([letter.isspace() for letter in letters]),
        IGNORABLE: _before_final_sigma(["A" + letter for letter in letters]) & ~cased,
    }
    codes = np.array([ord(letter) for letter in letters])
    entries = np.zeros(sys.maxunicode + 1, np.uint32)
    entries[codes] = (np.array([ord(each[0]) for each in lower]) - codes) & SHIFT
    for bit, has in bits.items():
        entries[codes[has]] |= np.uint32(bit)
    blocks, block = np.unique(entries.reshape(-1, _BLOCK), axis=0, return_inverse=True)
    return UnicodeTable(block=block.astype(np.int32), entries=blocks)


def _before_final_sigma(texts: list[str]) -> np.ndarray:
    """Whether a sigma after each text is a final one: bool[texts]."""
    lower = "\0".join(f" {text}Σ " for text in texts).lower().split("\0")
    return np.array([each[-2] == chr(FINAL_SIGMA) for each in lower])
