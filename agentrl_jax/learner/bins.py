"""Packing of rows of different lengths into bins, so that little is computed for padding.

Rows in one bin are segments that do not see each other. Which rows share a bin changes rounding only.

Shapes: `N` rows of at most `S` tokens with `K` response positions, and as many bins of `S` tokens, of which the last
are empty.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int


class Bins(struct.PyTreeNode):
    """Where each row is."""

    bin: Int[Array, " N"]
    """Bin of the row; N for an empty row, which is nowhere."""
    start: Int[Array, " N"]
    """Position of its first token in the bin."""
    length: Int[Array, " N"]


class BinTokens(struct.PyTreeNode):
    """The tokens of bins."""

    number: Int[Array, " B"]
    """Number of the bin."""
    tokens: Int[Array, "B S"]
    segment: Int[Array, "B S"]
    """1 + the row that the token is of; 0 for padding."""
    position: Int[Array, "B S"]
    """Index in the bin, from 1: the first token of a row is never sampled."""
    mask: Bool[Array, "B S"]
    """The token was sampled."""
    temperature: Float[Array, "B S"]
    """1 for padding."""


def assign(length: Int[Array, " N"], capacity: int) -> Bins:
    """Packs rows by first-fit decreasing (Johnson 1973): the longest first, each into the first bin with room.

    Bins are then numbered by their number of tokens, the fullest first.
    """
    count = length.shape[0]
    order = jnp.argsort(-length, stable=True)

    def place(room, row):
        wanted = length[row]
        chosen = jnp.argmax(room >= wanted)
        start = capacity - room[chosen]
        return room.at[chosen].add(-wanted), (chosen, start)

    room, (chosen, start) = jax.lax.scan(place, jnp.full(count, capacity) + 0 * length, order)
    rank = jnp.zeros_like(order).at[jnp.argsort(room, stable=True)].set(jnp.arange(count))
    back = jnp.zeros_like(order).at[order].set(jnp.arange(count))
    return Bins(jnp.where(length > 0, rank[chosen[back]], count), start[back], length)


def fill(
    bins: Bins,
    tokens: Int[Array, "N S"],
    position: Int[Array, "N K"],
    mask: Bool[Array, "N K"],
    temperature: Float[Array, " N"],
) -> BinTokens:
    """The tokens of all N bins. `position` and `mask` say which tokens of each row were sampled."""
    count, size = tokens.shape
    inside = jnp.arange(size)
    row = jnp.broadcast_to(bins.bin[:, None], tokens.shape)
    real = inside < bins.length[:, None]
    column = jnp.where(real, bins.start[:, None] + inside, size)

    def put(values, empty):
        return jnp.full((count, size), empty, values.dtype).at[row, column].set(values, mode="drop")

    def of_row(values):
        return jnp.broadcast_to(values[:, None], tokens.shape)

    sampled = jnp.zeros((count, size), bool)
    sampled = sampled.at[bins.bin[:, None], jnp.where(mask, bins.start[:, None] + position, size)].set(
        True, mode="drop"
    )
    return BinTokens(
        number=jnp.arange(count),
        tokens=put(tokens, 0),
        segment=put(of_row(1 + jnp.arange(count)), 0),
        position=jnp.broadcast_to(jnp.maximum(inside, 1), tokens.shape),
        mask=sampled,
        temperature=put(of_row(temperature), 1.0),
    )


def are_in(bins: Bins, some: BinTokens) -> Bool[Array, " N"]:
    """Which rows are in some of the bins."""
    return some.number[_index(bins, some)] == bins.bin


def unpack(bins: Bins, some: BinTokens, scores: Any, position: Int[Array, "N K"]) -> Any:
    """Scores [B, S] of the tokens of some bins as [N, K], by row; arbitrary for rows in other bins."""
    column = jnp.minimum(bins.start[:, None] + position, some.tokens.shape[1] - 1)
    return jax.tree.map(lambda x: x[_index(bins, some)[:, None], column], scores)


def _index(bins: Bins, some: BinTokens) -> Int[Array, " N"]:
    """Index of each row's bin among some bins, which are in ascending order; arbitrary if it is not there."""
    return jnp.minimum(jnp.searchsorted(some.number, bins.bin), some.number.shape[0] - 1)
