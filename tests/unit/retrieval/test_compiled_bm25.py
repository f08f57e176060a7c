import functools

import jax
import jax.numpy as jnp
import numpy as np
import plain_bm25
import pytest

from envs_jax.errors import BadValue
from envs_jax.retrieval import compiled_bm25, traced_bm25, words
from envs_jax.retrieval.characters import read, words_in

TEXTS = (
    "Sisyphus (ΣΊΣΥΦΟΣ) rolled a stone, and the stone rolled back",
    "A stone in Istanbul: İstanbul, Constantinople",
    "The naïve café of Москва has no stone",
    "the of and",
    "Καὶ ὁ Ὀδυσσεύς Sisyphus saw; a stone, a stone, a stone",
    "twin passage about rivers",
    "twin passage about rivers",
)
ROWS = 210
INDEX = compiled_bm25.build_index(TEXTS)


program = functools.cache(plain_bm25.program)


def searched(module, index, rows):
    """The result for rows of bytes; all calls have one shape."""
    assert len(rows) <= ROWS
    result = program(module, 9)(index, *plain_bm25.as_bytes([*rows, *[b""] * (ROWS - len(rows))], 64))
    return jax.tree.map(lambda x: x[: len(rows)], jax.device_get(result))


@pytest.mark.parametrize(
    ("module", "index"), [(compiled_bm25, INDEX), (traced_bm25, plain_bm25.traced(TEXTS))], ids=["indexed", "traced"]
)
def test_passages_are_those_of_the_formula(module, index):
    rows = [b"", b"the of and", b"qq zz", b"stone", b"Stone STONE sisyphus", "σίσυφος".encode(), b"twin rivers zz"]
    rows += plain_bm25.sampled_queries(TEXTS, np.random.default_rng(1), 200, 64)
    ids, scores, found = searched(module, index, rows)
    assert found[:3].tolist() == [0, 0, 0]
    assert found[3:7].tolist() == [7, 7, 7, 7]
    assert ids[5, 0] == 0
    assert ids[6, :2].tolist() == [5, 6]
    assert (found > 0).sum() > 100
    for row, data in enumerate(rows):
        wanted = plain_bm25.scores_of(TEXTS, data.decode("utf-8", "replace"))
        assert found[row] == (0 if wanted is None else len(TEXTS))
        assert (ids[row, found[row] :] == -1).all()
        if wanted is not None:
            np.testing.assert_allclose(scores[row, : found[row]], wanted[ids[row, : found[row]]], rtol=1e-5, atol=1e-6)
            best = sorted(range(len(TEXTS)), key=lambda i: (-round(wanted[i], 5), i))
            assert ids[row, : found[row]].tolist() == best, data


def test_scores_by_hand():
    """Two passages of 1 and 3 words, mean 2: log(1 + 1.5 / 1.5) / (1 + 1.5 * 0.625) and so on."""
    index = compiled_bm25.build_index(["aa", "bb bb cc"])
    _, scores, _ = program(compiled_bm25, 2)(index, *plain_bm25.as_bytes([b"aa", b"cc bb bb"], 64))
    once, twice, short = 1 / (1 + 1.5 * 1.375), 2 / (2 + 1.5 * 1.375), 1 / (1 + 1.5 * 0.625)
    np.testing.assert_allclose(scores, np.log(2) * np.array([[short, 0], [once + 2 * twice, 0]]), rtol=1e-6)


def test_frequent_words_have_a_row_and_rare_ones_a_list():
    texts = [f"every word{i % 40} passage{i}" for i in range(80)]
    index = compiled_bm25.build_index(texts)
    assert (index.most, index.frequent.shape) == (2, (2, 80))
    ids, scores, found = program(compiled_bm25, 3)(index, *plain_bm25.as_bytes([b"every word7", b"passage9"], 64))
    wanted = plain_bm25.scores_of(texts, "every word7")
    assert ids[0].tolist() == [7, 47, 0]
    np.testing.assert_allclose(scores[0], wanted[[7, 47, 0]], rtol=1e-5)
    assert ids[1].tolist() == [9, 0, 1]
    assert found.tolist() == [3, 3]


def test_words_are_compared_and_not_only_their_hashes():
    """All hashes of the index are made those of the query's word, which is none of its words."""
    fake = jnp.broadcast_to(jnp.array(words.word_hashes(["zz"])), INDEX.hashes.shape)
    assert searched(compiled_bm25, INDEX.replace(hashes=fake), [b"zz"]).found.tolist() == [0]


def test_a_corpus_that_cannot_be_indexed_is_refused(monkeypatch):
    with pytest.raises(BadValue) as error:
        compiled_bm25.build_index(["the a", "I"])
    assert error.value.key == "corpus"
    monkeypatch.setattr(compiled_bm25, "word_hashes", lambda names: np.zeros((len(names), 2), np.uint32))
    with pytest.raises(BadValue) as error:
        compiled_bm25.build_index(["one two"])
    assert error.value.value == "one, two"


def test_a_traced_corpus_may_differ_by_row():
    """Worlds that differ in one word, in one program."""
    corpora = [plain_bm25.traced([f"{name} is red", "other thing blue"]) for name in ("alma", "bert")]
    both = jax.tree.map(lambda *x: jnp.stack(x), *corpora)
    rows = plain_bm25.as_bytes([b"bert", b"bert"], 64)

    def one(corpus, data, total):
        return traced_bm25.search(corpus, words_in(read(data, total)), 1)

    found = jax.jit(jax.vmap(one))(both, *rows)
    assert found.found.tolist() == [0, 1]
    assert found.ids.tolist() == [[-1], [0]]
