"""BM25 on the device, with the scores of bm25s.

A passage of l words, in which a word of the query occurs f times, gets for it

    log(1 + (N - n + 0.5) / (n + 0.5)) * f / (f + k1 (1 - b + b l / mean l)),

where n of N passages have the word (Lucene's form, without the constant factor k1 + 1; Kamphuis et al., ECIR 2020). The
products are stored in float32, and added in float32 in the order of the query, as in the package.

Shapes: `N` passages, `V` words of the corpus, `C` their characters, `P` postings of rare words, `H` frequent words.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from envs_jax.errors import BadValue
from envs_jax.retrieval.characters import Words
from envs_jax.retrieval.top_k import FoundOnDevice, exact_top_k
from envs_jax.retrieval.words import code_points, word_hashes, words_of

K1, B = 1.5, 0.75


class Bm25Index(struct.PyTreeNode):
    """Words by hash, and the scores that each gives to passages: a list for a rare word, a row for a frequent one.

    Attributes:
        hashes: u32[V, 2] hashes of the words, sorted, all different.
        starts: i32[V + 1] where the characters of each word begin.
        characters: u32[C] the characters of all words.
        row: i32[V] of a frequent word, its row of `frequent`; 0 for a rare one, and row 0 is 0.
        first: i32[V] of a rare word, its first posting.
        postings: i32[V] number of postings; 0 for a frequent word.
        passage: i32[P] passage of each posting.
        score: f32[P] its score.
        frequent: f32[H, N] scores of frequent words.
        longest: characters of the longest word.
        most: the most postings of a rare word.
    """

    hashes: UInt32[Array, "V 2"]
    starts: Int32[Array, " V+1"]
    characters: UInt32[Array, " C"]
    row: Int32[Array, " V"]
    first: Int32[Array, " V"]
    postings: Int32[Array, " V"]
    passage: Int32[Array, " P"]
    score: Float32[Array, " P"]
    frequent: Float32[Array, "H N"]
    longest: int = struct.field(pytree_node=False)
    most: int = struct.field(pytree_node=False)


def build_index(texts: Sequence[str]) -> Bm25Index:
    """The index of the texts of passages, by id.

    Words in more than one of 32 passages have a row instead of a list, which bounds the length of lists.

    Raises:
        BadValue: no passage has a word, or two words have one hash.
    """
    passages = [words_of(text) for text in texts]
    sizes = np.array([len(passage) for passage in passages])
    if not sizes.any():
        raise BadValue(
            "the corpus has no word that BM25 can find; expected one of two letters in some passage", "corpus"
        )
    lists = defaultdict[str, list[tuple[int, int]]](list)
    for index, passage in enumerate(passages):
        for word, times in Counter(passage).items():
            lists[word].append((index, times))

    names = list(lists)
    hashes = word_hashes(names)
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))
    hashes, names = hashes[order], [names[i] for i in order]
    if len(same := np.flatnonzero((hashes[1:] == hashes[:-1]).all(axis=1))):
        two = f"{names[same[0]]}, {names[same[0] + 1]}"
        raise BadValue(f"the corpus has words {two} of one hash; leave one of them out", "corpus", two)

    found = np.array([len(lists[name]) for name in names])
    flat = np.array([posting for name in names for posting in lists[name]])
    scores = _scores(flat[:, 1], np.repeat(found, found), sizes[flat[:, 0]], sizes)
    rare = found <= max(len(texts) // 32, 1)
    most = int(found[rare].max(initial=1))
    rows = np.where(rare, 0, np.cumsum(~rare))
    frequent = np.zeros((rows.max() + 1, len(texts)), np.float32)
    frequent[np.repeat(rows, found), flat[:, 0]] = scores
    frequent[0] = 0  # where the postings of rare words went
    kept = np.repeat(rare, found)
    postings = np.where(rare, found, 0)
    characters, starts = code_points(names)
    return Bm25Index(
        hashes=jnp.array(hashes),
        starts=jnp.array(starts, jnp.int32),
        characters=jnp.array(characters),
        row=jnp.array(rows, jnp.int32),
        first=jnp.array(np.cumsum(postings) - postings, jnp.int32),
        postings=jnp.array(postings, jnp.int32),
        # With room for a whole list after the last one.
        passage=jnp.array(np.pad(flat[kept, 0], (0, most)), jnp.int32),
        score=jnp.array(np.pad(scores[kept], (0, most))),
        frequent=jnp.array(frequent),
        longest=max(map(len, names)),
        most=most,
    )


def _scores(times: np.ndarray, having: np.ndarray, size: np.ndarray, sizes: np.ndarray) -> Float32[np.ndarray, " P"]:
    """Scores of postings with the rounding of bm25s: the logarithm in float32, the rest in float64, the product in
    float32.
    """
    inverse = np.log(1 + (len(sizes) - having + 0.5) / (having + 0.5)).astype(np.float32)
    return (inverse * (times / (K1 * ((1 - B) + B * size / sizes.mean()) + times))).astype(np.float32)


def search(index: Bm25Index, words: Words, k: int) -> FoundOnDevice:
    """The k best passages for a query; pure, and made for `vmap` over queries.

    A query without a word of the corpus finds nothing; k beyond the corpus returns all of it.
    """
    number, known = lookup(index, words)
    # In their order, and without those that no passage has, which would cost as much.
    number = number[jnp.argsort(~known, stable=True)]

    def add(place, scores):
        word = number[place]
        first = index.first[word]
        passage = lax.dynamic_slice_in_dim(index.passage, first, index.most)
        score = lax.dynamic_slice_in_dim(index.score, first, index.most)
        has = jnp.arange(index.most) < index.postings[word]
        scores += index.frequent[index.row[word]]
        return scores.at[jnp.where(has, passage, len(scores))].add(score, mode="drop")

    scores = lax.fori_loop(0, known.sum(), add, jnp.zeros(index.frequent.shape[1], jnp.float32))
    return exact_top_k(scores, known.any(), k)


def lookup(index: Bm25Index, words: Words) -> tuple[Int32[Array, " W"], Bool[Array, " W"]]:
    """The number of each word of a query among those of the corpus, and whether it is one of them.

    Hashes only say where to look; characters are compared, so that the answer is exact.
    """
    vocabulary = len(index.hashes)

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) // 2
        other = index.hashes[middle]
        less = (other[:, 0] < words.hashes[:, 0]) | (
            (other[:, 0] == words.hashes[:, 0]) & (other[:, 1] <= words.hashes[:, 1])
        )
        return jnp.where(less, middle, low), jnp.where(less, high, middle)

    # The last word whose hash is at most that of the query's.
    low = jnp.zeros(len(words.sizes), jnp.int32)
    number, _ = lax.fori_loop(0, vocabulary.bit_length(), halve, (low, jnp.full_like(low, vocabulary)))
    start = index.starts[number]
    place = jnp.arange(index.longest)
    ours = words.characters[jnp.minimum(words.begins[:, None] + place, len(words.characters) - 1)]
    theirs = index.characters[jnp.minimum(start[:, None] + place, len(index.characters) - 1)]
    same = ((ours == theirs) | (place >= words.sizes[:, None])).all(axis=1)
    return number, same & (words.sizes == index.starts[number + 1] - start) & (words.sizes > 0)
