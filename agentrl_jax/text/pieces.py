"""Pieces of text, and tables that turn them into tokens on the device.

Shapes: `N` pieces in a table, `M` tokens in a table, `K` piece ids in a row.
"""

import dataclasses
import itertools
from collections.abc import Iterable

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int

from agentrl_jax.errors import BadValue
from agentrl_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Special:
    """A piece for the special token called `name`, which no text can produce."""

    name: str


Piece = str | Special


class PieceTable(struct.PyTreeNode):
    """The concatenated tokens of all pieces: those of piece `i` are `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: Int[Array, " M"]
    offsets: Int[Array, " N+1"]
    pad_id: int = struct.field(pytree_node=False)
    """Token that fills a row on the right."""


def spelled(pieces: Iterable[Piece]) -> str:
    """The text of pieces, special tokens by their names."""
    return "".join(piece.name if isinstance(piece, Special) else piece for piece in pieces)


def build_table(tokenizer: Tokenizer, pieces: Iterable[Piece]) -> PieceTable:
    """Encodes every piece separately, once per tokenizer; errors as in `encode_piece`."""
    rows = [encode_piece(tokenizer, piece) for piece in pieces]
    return PieceTable(
        tokens=jnp.array([token for row in rows for token in row] or [tokenizer.pad_id], jnp.int32),
        offsets=jnp.array(np.cumsum([0, *map(len, rows)]), jnp.int32),
        pad_id=tokenizer.pad_id,
    )


def encode_piece(tokenizer: Tokenizer, piece: Piece) -> list[int]:
    """Returns the tokens of one piece.

    Raises:
        ValueError: a special token is unknown, or decoding does not return the piece (the tokenizer normalizes text).
    """
    ids = encode_pieces(tokenizer, (piece,))
    if isinstance(piece, str) and tokenizer.decode_bytes(ids) != piece.encode():
        raise BadValue(
            f"the tokenizer turns the piece {piece!r} into {tokenizer.decode(ids)!r}; expected the same text back; "
            "write the piece in the tokenizer's normal form",
            key="piece",
            value=piece,
        )
    return ids


def encode_pieces(tokenizer: Tokenizer, pieces: Iterable[Piece], *, joined: bool = False) -> list[int]:
    """Returns the tokens of pieces, encoded one by one.

    With `joined`, the text between two special tokens is encoded at once, as if the whole text were tokenized.
    """
    if joined:
        runs = itertools.groupby(pieces, lambda piece: isinstance(piece, Special))
        merged = [list(run) if special else ["".join(map(str, run))] for special, run in runs]
        pieces = itertools.chain.from_iterable(merged)
    return [
        token
        for piece in pieces
        for token in ([tokenizer.special_id(piece.name)] if isinstance(piece, Special) else tokenizer.encode(piece))
    ]


def expand(
    table: PieceTable, ids: Int[Array, " K"], max_tokens: int
) -> tuple[Int[Array, " {max_tokens}"], Int[Array, ""]]:
    """Turns one row of piece ids into tokens; a negative id means no piece, anywhere in the row.

    Returns the tokens, padded on the right, and their true number, which exceeds the static length `max_tokens` if the
    row did not fit and was cut.
    """
    piece = jnp.maximum(ids, 0)
    begin = table.offsets[piece]
    lengths = jnp.where(ids >= 0, table.offsets[piece + 1] - begin, 0)
    ends = jnp.cumsum(lengths)
    # Position t of piece k is token t + shift[k]; comparing with every end is faster than a binary search here.
    shift = begin - (ends - lengths)
    positions = jnp.arange(max_tokens)
    owner = jnp.minimum(jnp.sum(ends[None, :] <= positions[:, None], axis=1), ids.shape[0] - 1)
    inside = positions < ends[-1]
    tokens = table.tokens[jnp.where(inside, positions + shift[owner], 0)]
    return jnp.where(inside, tokens, table.pad_id).astype(jnp.int32), ends[-1].astype(jnp.int32)
