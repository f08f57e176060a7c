import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers

from agentrl_jax.errors import BadValue
from agentrl_jax.text import tokenizer
from agentrl_jax.text.pieces import Special, build_table, encode_piece, expand

PIECES = ["#", "√", "\n", "Turn ", "", "Push the box onto the target.", "7", "<answer>", "<|end|>", "你好"]
END = len(PIECES)
ROW, ROOM = 12, 40
expand_rows = jax.jit(jax.vmap(expand, (None, 0, None)), static_argnums=2)


@pytest.fixture(scope="module")
def table(any_tokenizer):
    return build_table(any_tokenizer, [*PIECES, Special(any_tokenizer.special_name(any_tokenizer.end_of_turn_id))])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(-3, END), min_size=ROW, max_size=ROW), min_size=8, max_size=8))
@example([[-1] * ROW] * 8)
@example([[5] * ROW] * 8)
def test_tokens_are_those_of_the_pieces_in_order(any_tokenizer, table, rows):
    tokens, lengths = jax.device_get(expand_rows(table, np.array(rows, np.int32), ROOM))
    for ids, got, length in zip(rows, tokens, lengths):
        pieces = [PIECES[i] if i < END else None for i in ids if i >= 0]
        end = [any_tokenizer.end_of_turn_id]
        expected = [t for piece in pieces for t in (end if piece is None else any_tokenizer.encode(piece))]
        assert tokens.dtype == lengths.dtype == np.int32
        assert length == len(expected)
        assert got.tolist() == (expected + [any_tokenizer.pad_id] * ROOM)[:ROOM]
        if length <= ROOM:
            text = "".join(piece or "" for piece in pieces)
            assert any_tokenizer.decode(got[:length].tolist()) == text


def test_special_pieces_only_come_from_special(small):
    assert encode_piece(small, Special("<|end|>")) == [small.end_of_turn_id]
    assert small.end_of_turn_id not in encode_piece(small, "<|end|>")
    with pytest.raises(BadValue, match="'end'"):
        build_table(small, [Special("end")])


def test_a_piece_that_the_tokenizer_changes_is_refused(small):
    backend = Backend.from_str(small.backend.to_str())
    backend.normalizer = normalizers.NFC()
    with pytest.raises(BadValue) as refused:
        build_table(tokenizer.from_json(backend.to_str()), ["e\u0301"])
    assert (refused.value.key, refused.value.value) == ("piece", "e\u0301")
