import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prompt_texts import format_number
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers

from agentrl_jax.errors import BadValue
from agentrl_jax.text import tokenizer
from agentrl_jax.text.numbers import DIGIT_PIECES, number_pieces
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


BATCH = 64
write = jax.jit(jax.vmap(number_pieces, (0, None, None)), static_argnums=(1, 2))


def on_device(values, decimals, integer_digits=4):
    padded = np.resize(np.asarray(values, np.float32), BATCH)
    return spelled(np.asarray(write(padded, decimals, integer_digits))[: len(values)])


def spelled(rows):
    return ["".join(DIGIT_PIECES[i] for i in row if i >= 0) for row in rows]


DECIMAL = (
    *[(-0.1, "-0.1"), (10.9, "10.9"), (0.0, "0.0"), (-0.0, "0.0"), (-0.04, "0.0"), (-1.1, "-1.1"), (0.95, "1.0")],
    *[(0.25, "0.2"), (0.75, "0.8"), (-0.25, "-0.2"), (9999.94, "9999.9"), (12345.0, "9999.9"), (-1e9, "-9999.9")],
    *[(float("inf"), "9999.9"), (float("-inf"), "-9999.9"), (sum([-0.1] * 3), "-0.3"), (1e-40, "0.0")],
)


def test_one_decimal():
    values, texts = zip(*DECIMAL)
    assert tuple(format_number(value, 1) for value in values) == texts
    assert on_device([*values, float("nan")], 1) == [*texts, "0.0"]


def test_other_digits():
    """Halves go to the even neighbor."""
    assert on_device([0.5, 1.5, -2.5, 999.6, -0.4], 0, 3) == ["0", "2", "-2", "999", "0"]
    assert on_device([0.125, 1.375, -12.0, 0.004, 10005.0], 2, 4) == ["0.12", "1.38", "-12.00", "0.00", "9999.99"]


def test_counts_have_no_point():
    counts, texts = np.array([0, 7, 10, 99, 100, -3], np.int32), ["0", "7", "10", "99", "99", "-3"]
    assert [format_number(count, 0, 2) for count in counts] == on_device(counts, 0, 2) == texts
    whole = np.asarray(write(counts, 0, 2))
    assert (whole.dtype, whole.shape, spelled(whole)) == (np.int32, (6, 3), texts)


@pytest.mark.parametrize("digits", [(1, 7), (1, 0)])
def test_too_many_or_no_digits_are_refused(digits):
    with pytest.raises(BadValue):
        number_pieces(jnp.float32(1.0), *digits)
