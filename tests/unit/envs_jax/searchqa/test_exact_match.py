"""Answers in normal form, on the device and on the host."""

import jax
import numpy as np
import plain_bm25
import pytest

from agentrl_jax.services.environments.searchqa import answers
from envs_jax.retrieval.characters import read
from envs_jax.searchqa.exact_match import equals, normalized

SIZE = 64
program = jax.jit(jax.vmap(lambda data, total: normalized(read(data, total))))
PARTS = (
    *"aAnNtThHeE .,-_'\t\n",
    *(
        "the",
        "The ",
        " a ",
        " an ",
        "ΑΣ",
        "Σ",
        "İ",
        "\u212a",
        "ß",
        "\u0307",
        "\u00a0",
        "\u2003",
        "\x1c",
        "\x85",
        "\u3000",
    ),
    *("’", "é", "日本", "𝐀", "\u200d", "²", "٣", "\0", "naïve", "Straße", "ﬁ", "\ufffd"),
)


def test_normal_forms_are_those_of_the_host():
    random = np.random.default_rng(0)
    rows = [b"", b"the", b"a.n", "İİİ".encode() * 10, b"x" * SIZE, b"the a, an", "ΑΣ the".encode(), "aİ a".encode()]
    for _ in range(3000):
        row = "".join(random.choice(PARTS, random.integers(0, 30)).tolist()).encode()[:SIZE]
        if random.random() < 0.2 and row:
            row = bytearray(row)
            row[random.integers(len(row))] = random.integers(256)
        rows.append(bytes(row))
    rows += [random.bytes(int(random.integers(0, SIZE + 1))) for _ in range(300)]
    texts, sizes = jax.device_get(program(*plain_bm25.as_bytes(rows, SIZE)))
    wrong = []
    for data, text, size in zip(rows, texts, sizes):
        assert not text[size:].any()
        if "".join(map(chr, text[:size])) != answers.normalized(data.decode("utf-8", "replace")):
            wrong.append(data)
    assert wrong == []
    assert len({answers.normalized(data.decode("utf-8", "replace")) for data in rows}) > 2500


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("The  Straße!", True),
        ("straße", True),
        ("STRASSE", False),
        ("straße b", False),
        ("", False),
        (" " * 57 + "straße", True),
        (" " * 58 + "straße", False),  # one byte more than is read
    ],
)
def test_an_answer_is_right_if_normal_forms_are_equal(answer, right):
    gold = np.zeros(80, np.int32)
    gold[:6] = list(map(ord, "straße"))
    data, totals = plain_bm25.as_bytes([answer.encode()], SIZE)
    texts, sizes = program(data, totals)
    assert bool(equals(texts[0], sizes[0], gold, np.int32(6))) == right
