"""The compiled automaton against the reference parser, and that against `re`, on random responses."""

import functools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed_responses import BATCH, assert_equal_to_reference, moves, response_rows, slot_names

from agentrl_jax.text.grammar import ResponseGrammar, compile_grammar
from agentrl_jax.text.reference import parse_response

FORMATS = [(think, forced) for think in (False, True) for forced in (False, True)]


@pytest.mark.parametrize("key", FORMATS)
@settings(max_examples=40)
@given(data=st.data())
def test_any_tokens_small(small, compiled_grammar, key, data):
    assert_equal_to_reference(small, moves(*key), compiled_grammar(moves(*key), small), data.draw(response_rows(small)))


TAGS = ("<think>", "</think>", "<answer>", "</answer>", " ", "\n", "Up", "x", "<", "||")


@given(parts=st.lists(st.sampled_from(TAGS), max_size=14), think=st.booleans())
def test_the_answer_is_that_of_one_expression(parts, think):
    """The expression that defines the answer takes quadratic time, so the parser does not use it."""
    text = "".join(parts).encode()
    thought = rb"<think>.*?</think>\s*" if think else b""
    match = re.search(thought + rb"<answer>(.*?)</answer>", text, re.DOTALL)
    found = parse_response(text, moves(think, False, separator="@@"))
    items = () if match is None or not match[1].strip() else (match[1].strip().decode(),)
    assert (found.format_ok, found.items) == (match is not None, items)


@functools.cache
def slot_table(tokenizer):
    return compile_grammar(ResponseGrammar(actions=slot_names(), think=False, forced=True, max_actions=3), tokenizer)


@settings(max_examples=40)
@given(data=st.data())
def test_any_words_of_names_with_slots(small, data):
    form = ResponseGrammar(actions=slot_names(), think=False, forced=True, max_actions=3)
    words = sorted({word for name in slot_names() for word in name.split(" ")})
    word = st.sampled_from([*words, "look up", "go to red ball 1", "|", "||", "<", "</answer>", "x", ""])
    space = st.sampled_from([" ", " ", " ", "", "  ", "\n"])
    text = st.lists(st.tuples(word, space), max_size=12).map(lambda parts: "".join(a + b for a, b in parts))
    texts = data.draw(st.lists(text, min_size=1, max_size=BATCH))
    rows = [small.encode(text + "</answer>")[:48] for text in texts]
    assert_equal_to_reference(small, form, slot_table(small), rows)
