import logging

import numpy as np
import pytest

from agentrl_jax.errors import BadValue, UserError
from agentrl_jax.retrieval import packaged
from agentrl_jax.retrieval.corpus import Corpus
from agentrl_jax.retrieval.registry import RETRIEVERS, make_retriever
from envs_jax.retrieval.wordllama import load_wordllama

CORPUS = Corpus.of(
    [("Paris", "capital of France"), ("Rome", "capital of Italy"), ("Rome", "capital of Italy"), ("Oslo", "a fjord")]
)


def rows(found):
    return [row[:n].tolist() for row, n in zip(found.ids, found.found)]


def test_bm25_is_the_package_with_lower_ids_first():
    bm25s = pytest.importorskip("bm25s")
    retriever = make_retriever("bm25", CORPUS, 0)
    found = retriever.search(["italy", "the of", "", "zzz capital", "fjord fjord"], 3)
    assert rows(found) == [[1, 2, 0], [], [], [0, 1, 2], [3, 0, 1]]
    assert (found.ids[1] == -1).all()
    index = bm25s.BM25()
    index.index(bm25s.tokenize(CORPUS.texts, stopwords="en", show_progress=False), show_progress=False)
    np.testing.assert_array_equal(found.scores[4, :1], index.get_scores(["fjord", "fjord"])[3:])
    assert rows(retriever.search(["rome"], 9)) == [[1, 2, 0, 3]]
    assert retriever.search([], 2).ids.shape == (0, 2)
    with pytest.raises(BadValue) as error:
        retriever.search(["rome"], 0)
    assert (error.value.key, error.value.value) == ("k", 0)
    with pytest.raises(BadValue) as error:
        make_retriever("bm25", Corpus.of([("a", "of the")]), 0)
    assert error.value.key == "corpus"


def test_static_is_the_package_and_empty_text_finds_nothing():
    pytest.importorskip("wordllama")
    level, handlers = logging.getLogger().level, logging.getLogger().handlers[:]
    retriever = make_retriever("static", CORPUS, 0)
    assert (logging.getLogger().level, logging.getLogger().handlers) == (level, handlers)
    found = retriever.search(["", "Rome", "a city in Norway"], 3)
    assert rows(found)[0] == []
    assert rows(found)[1][:2] == [1, 2]
    assert rows(found)[2][0] == 3
    model = load_wordllama()
    np.testing.assert_allclose(found.scores[1, 0], model.similarity("Rome", CORPUS.texts[1]), atol=1e-5)


def test_random_depends_on_query_and_seed_alone():
    corpus = Corpus.of((str(i), "") for i in range(40))
    random = make_retriever("random", corpus, 3)
    first = random.search(["a", "b"], 40)
    assert [sorted(row) for row in rows(first)] == [list(range(40))] * 2
    np.testing.assert_array_equal(random.search(["b", "a"], 5).ids[::-1], first.ids[:, :5])
    assert rows(first)[0] != rows(first)[1]
    assert rows(make_retriever("random", corpus, 4).search(["a"], 40))[0] != rows(first)[0]


class Fixed:
    def search(self, queries, k, *, gold=None):
        from agentrl_jax.retrieval.retriever import listed

        return listed([[2, 0], []], k)


def test_empty_oracle_and_shuffled():
    from agentrl_jax.retrieval.controls import Shuffled

    assert rows(make_retriever("empty", CORPUS, 0).search(["rome"], 3)) == [[]]
    oracle = make_retriever("oracle", CORPUS, 0)
    found = oracle.search(["", "x", "y"], 2, gold=[[3], [], [2, 1, 0]])
    assert rows(found) == [[3], [], [2, 1]]
    assert found.scores.tolist() == [[1, 0], [0, 0], [1, 1]]
    for gold, value in ((None, None), ([[0]], 1), ([[0], [4], []], 4)):
        with pytest.raises(BadValue) as error:
            oracle.search(["", "x", "y"], 2, gold=gold)
        assert (error.value.key, error.value.value) == ("gold", value)
    other = rows(Shuffled(CORPUS, Fixed(), 0).search(["a", "b"], 2))
    assert len(set(other[0])) == 2
    assert 2 != other[0][0] != other[0][1] != 0
    assert other[1] == []
    with pytest.raises(BadValue) as error:
        Shuffled(Corpus.of([("a", "b")]), Fixed(), 0)
    assert error.value.key == "corpus"


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(packaged.importlib.import_module("sys").modules, "bm25s", None)
    monkeypatch.setattr(packaged.importlib.util, "find_spec", lambda name: None)
    for name, key in (("bm25", "bm25s"), ("shuffled", "bm25s"), ("static", "wordllama")):
        with pytest.raises(UserError) as error:
            make_retriever(name, CORPUS, 0)
        assert error.value.key == key
        assert "[search]" in str(error.value)
    with pytest.raises(UserError) as error:
        make_retriever("bm52", CORPUS, 0)
    assert (error.value.key, error.value.value) == ("retriever", "bm52")
    assert all(name in str(error.value) for name in RETRIEVERS)
