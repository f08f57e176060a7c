"""Pieces of text, and tables that turn them into tokens on the device.

Shapes: `N` pieces in a table, `M` tokens in a table, `K` piece ids in a row.
"""

import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from agentrl_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Special:
    """A piece for the special token called `name`, which no text can produce."""

    name: str


Piece = str | Special


class PieceTable(struct.PyTreeNode):
    """The concatenated tokens of all pieces.

    Attributes:
        tokens: i32[M] tokens of piece 0, then of piece 1, and so on.
        offsets: i32[N + 1] piece `i` has the tokens `tokens[offsets[i]:offsets[i + 1]]`.
        pad_id: token that fills a row on the right.
    """

    tokens: jax.Array
    offsets: jax.Array
    pad_id: int = struct.field(pytree_node=False)


def build_table(tokenizer: Tokenizer, pieces: Iterable[Piece]) -> PieceTable:
    """Encodes every piece separately, once per tokenizer.

    Raises:
        ValueError: a special token is unknown, or decoding does not return a piece (the tokenizer normalizes text).
    """
    rows = [encode_piece(tokenizer, piece) for piece in pieces]
    return PieceTable(
        tokens=jnp.array([token for row in rows for token in row] or [tokenizer.pad_id], jnp.int32),
        offsets=jnp.array(np.cumsum([0, *map(len, rows)]), jnp.int32),
        pad_id=tokenizer.pad_id,
    )


def encode_piece(tokenizer: Tokenizer, piece: Piece) -> list[int]:
    """Returns the tokens of one piece; errors as in `build_table`."""
    if isinstance(piece, Special):
        return [tokenizer.special_id(piece.name)]
    ids = tokenizer.encode(piece)
    if tokenizer.decode_bytes(ids) != piece.encode():
        raise ValueError(
            f"the tokenizer turns the piece {piece!r} into {tokenizer.decode(ids)!r}; expected the same text back; "
            "write the piece in the tokenizer's normal form"
        )
    return ids


def expand(table: PieceTable, ids: jax.Array, max_tokens: int) -> tuple[jax.Array, jax.Array]:
    """Turns one row of piece ids into tokens.

    Args:
        table: the pieces' tokens.
        ids: i32[K] piece ids; a negative id means no piece, anywhere in the row.
        max_tokens: static length of the result.

    Returns:
        (i32[max_tokens] tokens, padded on the right; i32[] true length, which exceeds `max_tokens` if the row did not
        fit and was cut).
    """
    piece = jnp.maximum(ids, 0)
    begin = table.offsets[piece]
    lengths = jnp.where(ids >= 0, table.offsets[piece + 1] - begin, 0)
    ends = jnp.cumsum(lengths)
    # Position t of piece k is token t + shift[k]; comparing with every end is faster than a binary search here.
    shift = begin - (ends - lengths)
    slots = jnp.arange(max_tokens)
    owner = jnp.minimum(jnp.sum(ends[None, :] <= slots[:, None], axis=1), ids.shape[0] - 1)
    inside = slots < ends[-1]
    tokens = table.tokens[jnp.where(inside, slots + shift[owner], 0)]
    return jnp.where(inside, tokens, table.pad_id).astype(jnp.int32), ends[-1].astype(jnp.int32)
