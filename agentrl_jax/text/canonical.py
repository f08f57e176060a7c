"""Canonical tokenization on the device: bytes of pieces are split into words and merged by rank.

Between two special tokens the tokens are those of `Tokenizer.encode` for the whole text. One exception: an added token
(such as Qwen3's `<think>`) is found only within one piece, not where it spans several pieces.

Shapes: `N` pieces, `V` vocabulary, `R` merge rules, `T` bytes of a row.
"""

import itertools
import json
import re
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from agentrl_jax.text import splitting
from agentrl_jax.text.pieces import Piece, PieceTable, Special, expand
from agentrl_jax.text.splitting import Splitting
from agentrl_jax.text.tokenizer import Tokenizer, byte_alphabet

_NEVER = np.int32(2**31 - 1)
"""Rank of a pair of tokens that no rule merges."""


class CanonicalTable(struct.PyTreeNode):
    """Pieces as bytes, and the merge rules of a byte-level BPE (Sennrich et al. 2016).

    Attributes:
        letters: the single-byte tokens of every piece.
        codes: code of each byte for the splitting, with the same offsets, see `splitting.codes`.
        first: i32[V + 1] the rules whose left token is `t` are `first[t]:first[t + 1]`.
        right: i32[R] right token of each rule, ascending.
        rank: i32[R] rules of lower rank are applied first.
        merged: i32[R] token that a rule merges its two tokens into.
        steps: steps of the binary search for a rule.
        most_bytes: `T`, enough for every row.
        splitting: how the text is split into words; tokens of different words are never merged.
    """

    letters: PieceTable
    codes: PieceTable
    first: jax.Array
    right: jax.Array
    rank: jax.Array
    merged: jax.Array
    steps: int = struct.field(pytree_node=False)
    most_bytes: int = struct.field(pytree_node=False)
    splitting: Splitting = struct.field(pytree_node=False)


def build_canonical(tokenizer: Tokenizer, pieces: Iterable[Piece], most_bytes: int) -> CanonicalTable:
    """Takes the rules from the tokenizer; rows have at most `most_bytes` bytes, with a special token counted as one.

    Raises:
        ValueError: the tokenizer's splitting or merging is not supported, or a piece has a character that the
            vocabulary or the splitting does not support.
    """
    layout = json.loads(tokenizer.backend.to_str())
    pattern = splitting.from_layout(layout)
    model = layout["model"]
    if model.get("ignore_merges") or model.get("dropout"):
        raise ValueError("a tokenizer with ignore_merges or dropout has no canonical encoder; use encoder pieces")
    vocabulary = model["vocab"]
    pairs = [tuple(rule.split(" ")) if isinstance(rule, str) else tuple(rule) for rule in model["merges"]]
    rules = np.array([(vocabulary[a], vocabulary[b], vocabulary[a + b]) for a, b in pairs], np.int32).reshape(-1, 3)
    order = np.lexsort((rules[:, 1], rules[:, 0]))
    left, right, merged = rules[order].T
    first = np.searchsorted(left, np.arange(tokenizer.vocab_size + 1)).astype(np.int32)
    alphabet = {byte: vocabulary.get(character) for byte, character in byte_alphabet().items()}

    added = {token["content"]: token["id"] for token in layout.get("added_tokens", ()) if not token["special"]}
    if any(token[way] for token in layout.get("added_tokens", ()) for way in ("lstrip", "rstrip", "single_word")):
        raise ValueError("a tokenizer whose added tokens take what is around them has no canonical encoder; use pieces")
    # A tokenizer finds its added tokens before it splits, longest first.
    apart = re.compile("|".join(map(re.escape, sorted(added, key=len, reverse=True))) or r"(?!)")

    def spell(piece: Piece) -> list[tuple[int, int]]:
        """Tokens of a piece with their codes."""
        if isinstance(piece, Special):
            return [(tokenizer.special_id(piece.name), splitting.BORDER)]
        spelled: list[tuple[int, int]] = []
        for text, name in itertools.zip_longest(apart.split(piece), apart.findall(piece)):
            for character in text:
                letters = [alphabet[byte] for byte in character.encode()]
                if None in letters:
                    raise ValueError(
                        f"the vocabulary has no token for {character!r} of the piece {piece!r}; use encoder pieces"
                    )
                spelled += zip(letters, splitting.codes(character))
            spelled += [(added[name], splitting.BORDER)] if name else []
        return spelled

    rows = [spell(piece) for piece in pieces]
    tokens, codes = np.array([pair for row in rows for pair in row] or [(0, 0)], np.int32).T
    offsets = jnp.array(np.cumsum([0, *map(len, rows)]), jnp.int32)
    return CanonicalTable(
        letters=PieceTable(jnp.asarray(tokens), offsets, tokenizer.pad_id),
        codes=PieceTable(jnp.asarray(codes), offsets, splitting.BORDER),
        first=jnp.asarray(first),
        right=jnp.asarray(right),
        rank=jnp.asarray(order.astype(np.int32)),
        merged=jnp.asarray(merged),
        steps=int(np.diff(first).max(initial=0)).bit_length(),
        most_bytes=most_bytes,
        splitting=pattern,
    )


def encode_row(table: CanonicalTable, ids: jax.Array, max_tokens: int) -> tuple[jax.Array, jax.Array]:
    """Turns one row of piece ids into the tokens of their text; arguments and results as for `pieces.expand`."""
    tokens, count = expand(table.letters, ids, table.most_bytes)
    codes, _ = expand(table.codes, ids, table.most_bytes)
    tokens, count = _merge(table, tokens, splitting.words(codes, table.splitting), count)
    tokens = jnp.pad(tokens, (0, max(0, max_tokens - table.most_bytes)))[:max_tokens]
    return jnp.where(jnp.arange(max_tokens) < count, tokens, table.letters.pad_id), count


def _merge(table: CanonicalTable, tokens: jax.Array, word: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Applies the rule of lowest rank in each word of a row, leftmost first, until no rule applies."""
    size = tokens.shape[0]
    slots = jnp.arange(size)

    def found(tokens, word, count):
        """Rank of the rule for each token and the next one, and the token that it merges them into."""
        right = jnp.roll(tokens, -1)
        low, high = table.first[tokens], table.first[tokens + 1]
        end = high
        for _ in range(table.steps):
            middle = (low + high) // 2
            below = (low < high) & (table.right[middle] < right)
            low, high = jnp.where(below, middle + 1, low), jnp.where(below, high, jnp.minimum(middle, high))
        rule = jnp.minimum(low, table.right.shape[0] - 1)
        pair = (jnp.roll(word, -1) == word) & (slots + 1 < count) & (low < end) & (table.right[rule] == right)
        return jnp.where(pair, table.rank[rule], _NEVER), table.merged[rule]

    def merge(state):
        tokens, word, count, (rank, merged) = state
        lowest = jnp.full(size + 1, _NEVER).at[word].min(rank)
        candidate = (rank < _NEVER) & (rank == lowest[word])
        chosen = jnp.full(size + 1, size).at[word].min(jnp.where(candidate, slots, size))
        here = candidate & (chosen[word] == slots)
        keep = ~jnp.roll(here, 1) & (slots < count)
        place = jnp.where(keep, jnp.cumsum(keep) - 1, size)
        tokens = jnp.zeros_like(tokens).at[place].set(jnp.where(here, merged, tokens), mode="drop")
        word = jnp.zeros_like(word).at[place].set(word, mode="drop")
        count = jnp.sum(keep)
        return tokens, word, count, found(tokens, word, count)

    def goes_on(state):
        return jnp.any(state[-1][0] < _NEVER)

    tokens, _, count, _ = jax.lax.while_loop(goes_on, merge, (tokens, word, count, found(tokens, word, count)))
    return tokens, count.astype(jnp.int32)


def encode_pieces(tokenizer: Tokenizer, pieces: Sequence[Piece], following: str = "") -> list[int]:
    """Tokens of constant pieces, encoded by the tokenizer itself; `following` is the text right after them.

    Raises:
        ValueError: a token would span the border between them.
    """
    tokens: list[int] = []
    text = ""
    for piece in pieces:
        if isinstance(piece, Special):
            tokens += [*tokenizer.encode(text), tokenizer.special_id(piece.name)]
            text = ""
        else:
            text += piece
    tail = tokenizer.encode(text + following)
    while tail and len(tokenizer.decode_bytes(tail)) > len(text.encode()):
        tail.pop()
    if tokenizer.decode_bytes(tail) != text.encode():
        raise ValueError(
            f"a token spans the end of {text[-20:]!r} and the beginning of {following[:20]!r}; use encoder pieces"
        )
    return tokens + tail
