"""Canonical tokenization on the device: bytes of pieces are split into words and merged by rank.

Between two special tokens the tokens are those of `Tokenizer.encode` for the whole text. One exception: an added token
(such as Qwen3's `<think>`) is found only within one piece, not where it spans several pieces.

Shapes: `R` merge rules, `T` bytes of a row, `K` piece ids of a row.
"""

import itertools
import json
import re
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int

from agentrl_jax.errors import BadValue
from agentrl_jax.text.canonical import splitting
from agentrl_jax.text.canonical.splitting import Splitting
from agentrl_jax.text.pieces import Piece, PieceTable, Special, encode_pieces, expand
from agentrl_jax.text.tokenizer import Tokenizer, byte_alphabet

_NO_RULE = np.int32(2**31 - 1)
"""Rank of a pair of tokens that no rule merges."""


class CanonicalTable(struct.PyTreeNode):
    """Pieces as bytes, and the merge rules of a byte-level BPE (Sennrich et al. 2016).

    The single-byte tokens of every piece and the codes of these bytes (`splitting.codes`) have the same offsets. The
    rules are sorted by their left and right token: those with left token `t` are `first[t]:first[t + 1]`.
    """

    byte_tokens: PieceTable
    codes: PieceTable
    first: Int[Array, " V+1"]
    right: Int[Array, " R"]
    rank: Int[Array, " R"]
    """Rules of lower rank are applied first."""
    merged: Int[Array, " R"]
    """Token that a rule merges its two tokens into."""
    search_steps: int = struct.field(pytree_node=False)
    max_bytes: int = struct.field(pytree_node=False)
    """`T`, enough for every row."""
    splitting: Splitting = struct.field(pytree_node=False)
    """How the text is split into words; tokens of different words are never merged."""


def build_canonical(tokenizer: Tokenizer, pieces: Iterable[Piece], max_bytes: int) -> CanonicalTable:
    """Takes the rules from the tokenizer; rows have at most `max_bytes` bytes, with a special token counted as one.

    Raises:
        ValueError: the tokenizer's splitting or merging is not supported, or a piece has a character that the
            vocabulary or the splitting does not support.
    """
    layout = json.loads(tokenizer.backend.to_str())
    pattern = splitting.from_layout(layout)
    model = layout["model"]
    if model.get("ignore_merges") or model.get("dropout"):
        raise BadValue(
            "a tokenizer with ignore_merges or dropout has no canonical encoder; set prompt.encoder to pieces",
            key="tokenizer",
        )
    vocabulary = model["vocab"]
    pairs = [tuple(rule.split(" ")) if isinstance(rule, str) else tuple(rule) for rule in model["merges"]]
    rules = np.array([(vocabulary[a], vocabulary[b], vocabulary[a + b]) for a, b in pairs], np.int32).reshape(-1, 3)
    order = np.lexsort((rules[:, 1], rules[:, 0]))
    left, right, merged = rules[order].T
    first = np.searchsorted(left, np.arange(tokenizer.vocab_size + 1)).astype(np.int32)
    alphabet = {byte: vocabulary.get(character) for byte, character in byte_alphabet().items()}

    added = layout.get("added_tokens", ())
    if any(token[option] for token in added for option in ("lstrip", "rstrip", "single_word")):
        raise BadValue(
            "a tokenizer whose added tokens depend on the text around them (lstrip, rstrip, single_word) has no "
            "canonical encoder; set prompt.encoder to pieces",
            key="tokenizer",
        )
    added_ids = {token["content"]: token["id"] for token in added if not token["special"]}
    # A tokenizer finds its added tokens before it splits, longest first.
    added_pattern = re.compile("|".join(map(re.escape, sorted(added_ids, key=len, reverse=True))) or r"(?!)")

    def encode_bytes(piece: Piece) -> list[tuple[int, int]]:
        """Returns the single-byte tokens of a piece with their codes."""
        if isinstance(piece, Special):
            return [(tokenizer.special_id(piece.name), splitting.SEPARATOR)]
        encoded: list[tuple[int, int]] = []
        for text, name in itertools.zip_longest(added_pattern.split(piece), added_pattern.findall(piece)):
            for character in text:
                tokens = [alphabet[byte] for byte in character.encode()]
                if None in tokens:
                    raise BadValue(
                        f"the vocabulary has no token for {character!r} of the piece {piece!r}; set prompt.encoder to "
                        "pieces",
                        key="vocabulary",
                        value=character,
                    )
                encoded += zip(tokens, splitting.codes(character))
            encoded += [(added_ids[name], splitting.SEPARATOR)] if name else []
        return encoded

    rows = [encode_bytes(piece) for piece in pieces]
    tokens, codes = np.array([pair for row in rows for pair in row] or [(0, 0)], np.int32).T
    offsets = jnp.array(np.cumsum([0, *map(len, rows)]), jnp.int32)
    return CanonicalTable(
        byte_tokens=PieceTable(jnp.asarray(tokens), offsets, tokenizer.pad_id),
        codes=PieceTable(jnp.asarray(codes), offsets, splitting.SEPARATOR),
        first=jnp.asarray(first),
        right=jnp.asarray(right),
        rank=jnp.asarray(order.astype(np.int32)),
        merged=jnp.asarray(merged),
        search_steps=int(np.diff(first).max(initial=0)).bit_length(),
        max_bytes=max_bytes,
        splitting=pattern,
    )


def encode_row(
    table: CanonicalTable, ids: Int[Array, " K"], max_tokens: int
) -> tuple[Int[Array, " {max_tokens}"], Int[Array, ""]]:
    """Turns one row of piece ids into the tokens of their text; arguments and results as for `pieces.expand`."""
    tokens, count = expand(table.byte_tokens, ids, table.max_bytes)
    codes, _ = expand(table.codes, ids, table.max_bytes)
    tokens, count = _merge(table, tokens, splitting.words(codes, table.splitting), count)
    tokens = jnp.pad(tokens, (0, max(0, max_tokens - table.max_bytes)))[:max_tokens]
    return jnp.where(jnp.arange(max_tokens) < count, tokens, table.byte_tokens.pad_id), count


def _merge(
    table: CanonicalTable, tokens: Int[Array, " T"], word: Int[Array, " T"], count: Int[Array, ""]
) -> tuple[Int[Array, " T"], Int[Array, ""]]:
    """Applies the rule of lowest rank in each word of a row, leftmost first, until no rule applies."""
    size = tokens.shape[0]
    positions = jnp.arange(size)

    def find_rules(tokens, word, count):
        """Returns the rank of the rule for each token and the next one, and the token that it merges them into."""
        right = jnp.roll(tokens, -1)
        low, high = table.first[tokens], table.first[tokens + 1]
        end = high
        for _ in range(table.search_steps):
            middle = (low + high) // 2
            below = (low < high) & (table.right[middle] < right)
            low, high = jnp.where(below, middle + 1, low), jnp.where(below, high, jnp.minimum(middle, high))
        rule = jnp.minimum(low, table.right.shape[0] - 1)
        pair = (jnp.roll(word, -1) == word) & (positions + 1 < count) & (low < end) & (table.right[rule] == right)
        return jnp.where(pair, table.rank[rule], _NO_RULE), table.merged[rule]

    def merge(state):
        tokens, word, count, (rank, merged) = state
        lowest = jnp.full(size + 1, _NO_RULE).at[word].min(rank)
        candidate = (rank < _NO_RULE) & (rank == lowest[word])
        leftmost = jnp.full(size + 1, size).at[word].min(jnp.where(candidate, positions, size))
        chosen = candidate & (leftmost[word] == positions)
        keep = ~jnp.roll(chosen, 1) & (positions < count)
        target = jnp.where(keep, jnp.cumsum(keep) - 1, size)
        tokens = jnp.zeros_like(tokens).at[target].set(jnp.where(chosen, merged, tokens), mode="drop")
        word = jnp.zeros_like(word).at[target].set(word, mode="drop")
        count = jnp.sum(keep)
        return tokens, word, count, find_rules(tokens, word, count)

    def any_rule(state):
        return jnp.any(state[-1][0] < _NO_RULE)

    tokens, _, count, _ = jax.lax.while_loop(any_rule, merge, (tokens, word, count, find_rules(tokens, word, count)))
    return tokens, count.astype(jnp.int32)


def encode_prefix(tokenizer: Tokenizer, pieces: Sequence[Piece], following: str) -> list[int]:
    """Returns the tokens of constant pieces as the tokenizer itself encodes them in front of the text `following`.

    Raises:
        ValueError: a token would span the border between them.
    """
    text = "".join(piece for piece in pieces if isinstance(piece, str)).encode()
    tokens = encode_pieces(tokenizer, (*pieces, following), joined=True)
    while len(tokenizer.decode_bytes(tokens)) > len(text):
        tokens.pop()
    if tokenizer.decode_bytes(tokens) != text:
        raise BadValue(
            f"a token spans the end of {text[-20:].decode('utf-8', 'replace')!r} and the beginning of "
            f"{following[:20]!r}; set prompt.encoder to pieces",
            key="token",
            value=following[:20],
        )
    return tokens
