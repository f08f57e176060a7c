"""Cuts bytes into the longest tokens of a vocabulary, from left to right, on the device."""

from collections.abc import Mapping

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Int, Int32

from envs_jax.errors import BadValue


class Trie(struct.PyTreeNode):
    """All beginnings of tokens, numbered by length and then in order, so that edge e leads to node e + 1.

    Attributes:
        edges: i32[E] 256 times the node that an edge leaves plus its byte; sorted.
        token: i32[E + 1] the token that a node spells; -1 for none.
    """

    edges: Int32[Array, " E"]
    token: Int32[Array, " E+1"]


def build_trie(vocabulary: Mapping[bytes, int]) -> Trie:
    """The trie of tokens by their bytes.

    Raises:
        BadValue: one of the 256 bytes is no token, so that some text could not be cut; or there are too many tokens.
    """
    lacking = [byte for byte in range(256) if bytes([byte]) not in vocabulary]
    if lacking:
        why = f"vocabulary lacks the byte {lacking[0]}; expected all 256 bytes among the tokens"
        raise BadValue(why, "vocabulary", lacking[0])
    beginnings = {word[:size] for word in vocabulary for size in range(1, len(word) + 1)}
    ordered = sorted(beginnings, key=lambda beginning: (len(beginning), beginning))
    if len(ordered) >= 2**23:
        why = f"vocabulary has {len(ordered)} beginnings of tokens; expected less than {2**23}"
        raise BadValue(why, "vocabulary", len(ordered))
    node = {b"": 0} | {beginning: number for number, beginning in enumerate(ordered, start=1)}
    return Trie(
        edges=jnp.array([node[each[:-1]] * 256 + each[-1] for each in ordered], jnp.int32),
        token=jnp.array([-1, *(vocabulary.get(each, -1) for each in ordered)], jnp.int32),
    )


def longest_match(trie: Trie, data: Int[Array, " B"], total: Int[Array, ""]) -> tuple[Array, Bool[Array, " B"]]:
    """The longest token at each of the first `total` bytes: i32[B]; and whether it is one of the cut: bool[B]."""
    place = jnp.arange(len(data))

    def step(state):
        depth, node, token, span = state
        byte = data[jnp.minimum(place + depth, len(data) - 1)]
        key = node * 256 + byte
        edge = jnp.searchsorted(trie.edges, key)
        on = (node >= 0) & (place + depth < total) & (trie.edges[jnp.minimum(edge, len(trie.edges) - 1)] == key)
        node = jnp.where(on, edge + 1, -1).astype(jnp.int32)
        here = jnp.where(on, trie.token[node], -1)
        return depth + 1, node, jnp.where(here >= 0, here, token), jnp.where(here >= 0, depth + 1, span)

    zeros = jnp.zeros(len(data), jnp.int32)
    # `span` is at least 1 within `total`, since every byte is a token.
    _, _, token, span = lax.while_loop(lambda state: (state[1] >= 0).any(), step, (0, zeros, zeros, zeros + 1))

    # From the first byte on, every token leads to the next; jumps of 1, 2, 4, ... tokens reach all that are cut.
    jump = jnp.append(jnp.minimum(place + span, len(data)), len(data))
    reached = jnp.arange(len(data) + 1) == 0
    for _ in range(len(data).bit_length()):
        reached |= jnp.zeros_like(reached).at[jump].max(reached)
        jump = jump[jump]
    return token, reached[:-1] & (place < total)
