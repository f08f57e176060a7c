import functools

import jax
import jax.numpy as jnp
import numpy as np
import plain_bm25
import pytest

from envs_jax.errors import BadValue
from envs_jax.retrieval import compiled_static, longest_match
from envs_jax.retrieval.wordllama import load_wordllama

VOCABULARY = {bytes([i]): i for i in range(256)} | {b" a": 256, b"abcd": 257, b"ab": 258, b" abc": 259, b"cd": 260}
NAMES = {token: name for name, token in VOCABULARY.items()}


def plain_cut(data):
    """The longest token at each place, from left to right."""
    tokens = []
    while data:
        size = next(size for size in range(5, 0, -1) if data[:size] in VOCABULARY)
        tokens.append(VOCABULARY[data[:size]])
        data = data[size:]
    return tokens


def encoder():
    vectors = np.random.default_rng(0).normal(size=(261, 8)).astype(np.float32)
    return compiled_static.Encoder(longest_match.build_trie(VOCABULARY), jnp.array(vectors))


def test_the_cut_is_the_longest_from_left_to_right():
    random = np.random.default_rng(0)
    rows = [b"", b"abcd", b" abcd abc", b"a", b"\xff\x00 ab"]
    rows += [bytes(random.choice(list(b" abcd"), size).tolist()) for size in random.integers(0, 33, 60)]
    tokens, totals = plain_bm25.as_bytes(rows, 32)
    cut = jax.jit(jax.vmap(longest_match.longest_match, in_axes=(None, 0, 0)))
    found, begins = jax.device_get(cut(longest_match.build_trie(VOCABULARY), tokens, totals))
    assert [list(token[begin]) for token, begin in zip(found, begins)] == [plain_cut(row) for row in rows]
    with pytest.raises(BadValue) as error:
        longest_match.build_trie({bytes([i]): i for i in range(255)})
    assert (error.value.key, error.value.value) == ("vocabulary", 255)


def plain_vector(vectors, data):
    mean = vectors[plain_cut(b" " + data)].mean(axis=0)
    return mean / np.linalg.norm(mean)


@pytest.mark.parametrize(("dtype", "atol"), [(jnp.float32, 1e-6), (jnp.bfloat16, 2e-2)])
def test_scores_are_cosines_of_mean_embeddings(dtype, atol):
    random, static = np.random.default_rng(1), encoder()
    texts = ["".join(random.choice(list(" abcdxy"), size)) for size in (3, 40, 90, 7, 7, 64)]
    texts[4] = texts[3]
    index = compiled_static.build_index(static, texts, dtype)
    assert index.passages.dtype == dtype
    rows = [b"", b"abcd ab", b"x", texts[3].encode()]
    program = jax.jit(jax.vmap(functools.partial(compiled_static.search, k=8), in_axes=(None, 0, 0)))
    found = jax.device_get(program(index, *plain_bm25.as_bytes(rows, 32)))
    assert found.found.tolist() == [0, 6, 6, 6]
    assert found.ids[3, :2].tolist() == [3, 4]
    vectors = np.asarray(static.embeddings)
    passages = np.stack([plain_vector(vectors, text.encode()) for text in texts])
    for row in (1, 2, 3):
        wanted = passages @ plain_vector(vectors, rows[row])
        np.testing.assert_allclose(found.scores[row, :6], np.sort(wanted)[::-1], atol=atol)
        np.testing.assert_allclose(found.scores[row, :6], wanted[found.ids[row, :6]], atol=atol)
    assert found.scores.dtype == np.float32


def test_the_encoder_of_the_package():
    """Where both cut a text alike, the vectors are equal."""
    pytest.importorskip("wordllama")
    model = load_wordllama()
    static = compiled_static.wordllama_encoder(model)
    texts = ["the capital of France", "日本 x", "a\x01b"]
    ids = [each.ids[: sum(each.attention_mask)] for each in model.tokenize(texts)]
    cut = jax.jit(longest_match.longest_match)
    for text, wanted in zip(texts, ids):
        data = np.zeros(40, np.int32)
        written = b" " + text.encode()
        data[: len(written)] = list(written)
        token, begins = cut(static.trie, data, len(written))
        assert np.asarray(token)[np.asarray(begins)].tolist() == wanted
    index = compiled_static.build_index(static, texts)
    np.testing.assert_allclose(index.passages, model.embed(texts, norm=True), atol=1e-5)
