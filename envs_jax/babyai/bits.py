"""Sets of small numbers as the bits of integers. Shapes: `S` numbers, `W` words of 32 bits."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32, UInt32

WORD = 32


def pack(included: Bool[Array, "*K S"], words: int) -> UInt32[Array, "*K {words}"]:
    """Returns a set of numbers below `32 * words` as bits, lowest first."""
    # A product adds up the bits; two halves of a word, since sums of 32 bits are not exact in float32.
    numbers, halves = np.arange(included.shape[-1])[:, None], np.arange(2 * words)
    weights = np.where(numbers // 16 == halves, np.float32(2) ** (numbers % 16), np.float32(0))
    sums = (included.astype(jnp.float32) @ weights).astype(jnp.uint32)
    return sums[..., ::2] | sums[..., 1::2] << 16


def nth(counts: Int[Array, "*K N"], rank: Int[Array, "*K"]) -> tuple[Int32[Array, "*K"], Int32[Array, "*K"]]:
    """Returns the group in which the element of a rank is, and its rank in there, for groups of some counts."""
    # XLA's own cumulative sums are slow on a CPU.
    ends = counts.astype(jnp.float32) @ np.triu(np.ones((counts.shape[-1],) * 2, np.float32))
    ends = ends.astype(jnp.int32)
    before = ends <= rank[..., None]
    group = jnp.minimum(jnp.sum(before, axis=-1), counts.shape[-1] - 1).astype(jnp.int32)
    return group, rank - jnp.max(jnp.where(before, ends, 0), axis=-1)


def nth_bit(bits: Int[Array, "*K"], rank: Int[Array, "*K"]) -> Int32[Array, "*K"]:
    """Returns the position of the set bit of a rank, from 0; arbitrary if there are fewer."""
    position = jnp.zeros(bits.shape, jnp.int32)
    for width in (16, 8, 4, 2, 1):
        low = jax.lax.population_count(bits & (1 << width) - 1).astype(jnp.int32)
        above = rank >= low
        bits, rank = jnp.where(above, bits >> width, bits), rank - jnp.where(above, low, 0)
        position += jnp.where(above, width, 0)
    return position


def nth_number(packed: UInt32[Array, "*K W"], rank: Int[Array, "*K"]) -> Int32[Array, "*K"]:
    """Returns the number of a rank, from 0, in a packed set; arbitrary if there are fewer.

    It costs less than sorting the numbers, or counting them up to each.
    """
    word, first = packed[..., 0], jnp.zeros(rank.shape, jnp.int32)
    for number in range(1, packed.shape[-1]):
        count = jax.lax.population_count(word).astype(jnp.int32)
        beyond = rank >= count
        word = jnp.where(beyond, packed[..., number], word)
        rank, first = jnp.where(beyond, rank - count, rank), jnp.where(beyond, WORD * number, first)
    return first + nth_bit(word, rank)
