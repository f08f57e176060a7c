"""The compiled automaton against the reference parser, over the tokens of a large tokenizer."""

from hypothesis import given, settings
from hypothesis import strategies as st
from parsed_responses import assert_equal_to_reference, moves, response_rows


@settings(max_examples=20)
@given(data=st.data())
def test_any_tokens(large, compiled_grammar, data):
    form = moves(True, True)
    assert_equal_to_reference(large, form, compiled_grammar(form, large), data.draw(response_rows(large)))
