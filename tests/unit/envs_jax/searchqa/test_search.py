"""Search in invented worlds."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import plain_bm25

from envs_jax.retrieval.characters import read, words_in
from envs_jax.retrieval.words import word_hashes, words_of
from envs_jax.searchqa import text
from envs_jax.searchqa.env import bm25
from envs_jax.searchqa.world import make_world, name_pieces, passage

ENTITIES = 40


def texts_of(world):
    def spelled(pieces):
        return "".join(text.PIECES[i] for i in pieces.tolist() if i >= 0)

    numbers = jnp.arange(ENTITIES)
    names, passages = (
        np.asarray(jax.vmap(lambda entity, of=of: of(world, entity))(numbers)) for of in (name_pieces, passage)
    )
    return [f"{spelled(name)}\n{spelled(each)}" for name, each in zip(names, passages)]


def test_the_index_has_the_words_of_titles_and_passages():
    world = jax.jit(make_world, static_argnums=1)(jnp.uint32(3), ENTITIES)
    for shown, row in zip(texts_of(world), np.asarray(world.words)):
        wanted = Counter(map(tuple, word_hashes(words_of(shown)).tolist()))
        assert Counter(tuple(pair) for pair in row.tolist() if any(pair)) == wanted, shown


def test_passages_are_those_of_the_formula():
    world = jax.jit(make_world, static_argnums=1)(jnp.uint32(3), ENTITIES)
    texts = texts_of(world)
    rows = plain_bm25.sampled_queries(texts, np.random.default_rng(0), 100, 64)

    def one(data, total):
        return bm25(world, words_in(read(data, total)), 3)

    found = np.asarray(jax.jit(jax.vmap(one))(*plain_bm25.as_bytes(rows, 64)))
    for data, ids in zip(rows, found):
        scores = plain_bm25.scores_of(texts, data.decode("utf-8", "replace"))
        best = [] if scores is None else sorted(range(ENTITIES), key=lambda i: (-round(scores[i], 5), i))[:3]
        assert ids.tolist() == [i if i in best and scores[i] > 0 else -1 for i in [*best, -1, -1, -1][:3]], data
    assert (found[:, 0] >= 0).sum() > 50
