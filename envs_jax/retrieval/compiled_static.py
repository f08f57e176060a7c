"""Static embeddings on the device: a gather, a mean and a norm.

This is another encoder than `wordllama`'s: text is cut into the longest tokens of its vocabulary from left to right,
not by the merges of Llama 2, passages and queries alike. Bytes that are not UTF-8 are tokens of one byte. Recall beside
the package's own is printed by `benchmarks/retrievers.py`.

Shapes: `T` tokens of the embeddings, `D` their width, `N` passages, `B` bytes.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Float, Float32, Int

from envs_jax.retrieval.longest_match import Trie, build_trie, longest_match
from envs_jax.retrieval.top_k import FoundOnDevice, exact_top_k

_SPACE = 0x20
_ROWS = 16
"""Passages that are encoded together; limits the memory."""


class Encoder(struct.PyTreeNode):
    """A vocabulary, and the embeddings of its tokens."""

    trie: Trie
    embeddings: Float32[Array, "T D"]


class StaticIndex(struct.PyTreeNode):
    """An encoder with the unit vectors of passages, in float32 or bfloat16."""

    encoder: Encoder
    passages: Float[Array, "N D"]


def wordllama_encoder(model: Any) -> Encoder:
    """The encoder of what `wordllama.load_wordllama` returns; its special tokens are in no text."""
    vocabulary = dict[bytes, int]()
    for name, token in model.tokenizer.get_vocab(with_added_tokens=True).items():
        if name in ("<unk>", "<s>", "</s>"):
            continue
        if len(name) == 6 and name.startswith("<0x"):
            vocabulary.setdefault(bytes([int(name[3:5], 16)]), token)
        else:
            vocabulary[name.replace("▁", " ").encode()] = token
    return Encoder(build_trie(vocabulary), jnp.array(model.embedding))


def build_index(encoder: Encoder, texts: Sequence[str], dtype: Any = jnp.float32) -> StaticIndex:
    """Encodes the texts of passages, by id; texts of like length together."""
    rows = [text.encode() for text in texts]
    size = np.array([1 << max(len(row), 32).bit_length() for row in rows])
    vectors = np.zeros((len(rows), encoder.embeddings.shape[1]), np.float32)
    for width in np.unique(size):
        chosen = np.flatnonzero(size == width)
        data = np.stack([np.pad(np.frombuffer(rows[i], np.uint8), (0, width - len(rows[i]))) for i in chosen])
        vectors[chosen] = _encode_all(encoder, data.astype(np.int32), np.array([len(rows[i]) for i in chosen]))
    return StaticIndex(encoder, jnp.array(vectors, dtype))


@jax.jit
def _encode_all(encoder: Encoder, data: Array, totals: Array) -> Array:
    return lax.map(lambda row: encode(encoder, *row), (data, totals), batch_size=_ROWS)


def encode(encoder: Encoder, data: Int[Array, " B"], total: Int[Array, ""]) -> Float32[Array, " D"]:
    """The unit vector of the first `total` bytes, with a space before them as in Llama 2; 0 for no bytes."""
    token, begins = longest_match(encoder.trie, jnp.append(_SPACE, data), total + 1)
    chosen = begins.astype(jnp.float32) * (total > 0)
    mean = jnp.einsum("b,bd->d", chosen, encoder.embeddings[token], precision=lax.Precision.HIGHEST)
    mean /= jnp.maximum(chosen.sum(), 1)
    return mean / jnp.maximum(jnp.linalg.norm(mean), 1e-12)


def search(index: StaticIndex, data: Int[Array, " B"], total: Int[Array, ""], k: int) -> FoundOnDevice:
    """The k passages of the highest cosine similarity, accumulated in float32, for the first `total` of B bytes.

    A query without bytes finds nothing; of one with more than B, the first B count. k beyond the corpus returns all of
    it.
    """
    vector = encode(index.encoder, data, jnp.minimum(total, len(data)))
    scores = jnp.einsum(
        "nd,d->n",
        index.passages,
        vector.astype(index.passages.dtype),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return exact_top_k(scores, total > 0, k)
