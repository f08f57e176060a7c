import re
import sys

import jax
import numpy as np
import plain_bm25
import pytest

from envs_jax.retrieval import characters, words
from envs_jax.retrieval.unicode_table import SECOND, SIGMA, unicode_table

read = jax.jit(jax.vmap(lambda data, total: characters.words_in(characters.read(data, total))))
TEXTS = (
    "",
    "The cat, the_cat 42 a b é ab",
    "ΣΊΣΥΦΟΣ ὈΔΥΣΣΕΎΣ",
    "ΑΣ' ΑΣ'Α Σ ΑΣ. Σ.Α a\u0345Σ\u0345 \u02b0Σ \u0301Σ",
    "İstanbul xİy aİ İİ ǅ ß ẞ K",
    "日本語 текст ÀÉ٣٤ x²y½ a\u200db _ __",
    "\x00a\x00bc",
    "𝐀𝐁 𐐀𐐁 Ab" + "Σ" * 3,
)


def found(result, row):
    characters = np.asarray(result.characters[row])
    begins, sizes = np.asarray(result.begins[row]), np.asarray(result.sizes[row])
    return ["".join(map(chr, characters[b : b + s])) for b, s in zip(begins, sizes)][: int(result.number[row])]


def wanted(data):
    return words.WORD.findall(data.decode("utf-8", "replace").lower())


def test_words_are_those_of_the_decoded_text():
    random = np.random.default_rng(0)
    likely = [
        0x41,
        0x62,
        0x20,
        0x80,
        0xBF,
        0xA0,
        0x9F,
        0xC2,
        0xCE,
        0xA3,
        0xE0,
        0xED,
        0xE2,
        0xF0,
        0xF4,
        0x90,
        0x8F,
        0xFF,
    ]
    rows = [text.encode() for text in TEXTS]
    rows += [text.encode()[:-1] for text in TEXTS[2:]]
    rows += [bytes(random.choice(likely, size).tolist()) for size in random.integers(1, 97, 150)]
    rows += [random.bytes(size) for size in random.integers(1, 97, 50)]
    result = jax.device_get(read(*plain_bm25.as_bytes(rows, 96)))
    for row, data in enumerate(rows):
        assert found(result, row) == wanted(data), data
        if result.number[row]:
            np.testing.assert_array_equal(result.hashes[row][: result.number[row]], words.word_hashes(wanted(data)))
    assert not result.hashes[0].any()


def test_invalid_bytes_are_replaced_as_in_python():
    likely = [0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF]
    rows = [bytes([a, b, c, d]) for a in likely for b in likely for c in likely for d in likely]
    data = np.array([list(row) for row in rows], np.int32)
    codes, counts = jax.jit(jax.vmap(characters.decoded))(data, np.full(len(rows), 4))
    for row, codes_, count in zip(rows, np.asarray(codes), np.asarray(counts)):
        assert "".join(map(chr, codes_[:count])) == row.decode("utf-8", "replace"), row


def test_a_long_query_is_cut():
    result = read(*plain_bm25.as_bytes([b"a" * 96, b"a" * 97, b"a" * 120], 96))
    assert (result.number.tolist(), result.sizes[:, 0].tolist()) == ([1, 1, 1], [96, 96, 96])


def assert_lowered(codes):
    """Compares with Python: characters alone, and beside a sigma, whose form depends on them."""
    table, text = unicode_table(), "".join(map(chr, codes))
    lowered = jax.jit(lambda codes: characters.lowered(table, codes, len(codes)))
    lower, word, doubled, space, _ = map(np.asarray, lowered(codes))
    firsts = "".join("σ" if c == "Σ" else c.lower()[0] for c in text)
    alone = codes != SIGMA
    assert "".join(map(chr, lower[alone])) == "".join(c for c, keep in zip(firsts, alone) if keep)
    assert [firsts[i] for i in np.flatnonzero(word)] == re.findall(r"\w", firsts)
    assert [text[i] for i in np.flatnonzero(doubled)] == [c for c in text if c.lower()[1:] == chr(SECOND)]
    assert [text[i] for i in np.flatnonzero(space)] == [c for c in text if c.isspace()]
    for form in (" {}Σ ", " A{}Σ ", " AΣ{} ", " AΣ{}A "):
        row = "".join(form.format(c) for c in text if len(c.lower()) == 1)
        ours = lowered(np.frombuffer(row.encode("utf-32-le"), np.int32)).lower
        assert "".join(map(chr, np.asarray(ours))) == row.lower()


def test_the_table_is_that_of_the_running_python():
    assert_lowered(np.r_[1:0x600, 0x1C80:0x2200, 0xA640:0xA700, 0x10400:0x10450, 0xE0100:0xE0110].astype(np.int32))


@pytest.mark.nightly
def test_the_table_has_all_characters():
    codes = np.arange(sys.maxunicode + 1, dtype=np.int32)
    assert_lowered(codes[(codes < 0xD800) | (codes >= 0xE000)])


def test_hashes_of_words():
    known = ["ab", "ba", "aa", "aaa", "σς", "a" * 3000]
    hashes = words.word_hashes(known)
    assert hashes.shape == (6, 2)
    assert len({tuple(row) for row in hashes.tolist()}) == 6
    np.testing.assert_array_equal(words.word_hashes(["ba"])[0], hashes[1])
    assert len(set(hashes[:, 0].tolist())) == len(set(hashes[:, 1].tolist())) == 6


def test_stop_words_are_those_of_the_package():
    stopwords = pytest.importorskip("bm25s.stopwords")
    assert frozenset(stopwords.STOPWORDS_EN) == words.STOP_WORDS
    assert words.words_of("The Cat of THE dog a I") == ["cat", "dog"]
