import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed_responses import MOVES, assert_equal_to_reference, device_parse, moves, response_rows

from agentrl_jax.errors import BadValue
from agentrl_jax.text.grammar import ResponseGrammar, compile_grammar
from agentrl_jax.text.reference import parse_response

FORMATS = [(think, forced) for think in (False, True) for forced in (False, True)]


def with_tokens(tokenizer, words):
    """A tokenizer whose ordinary tokens are `words`, ids from 1 on; 0 is special."""
    changes = {"token_bytes": (None, *words), "vocab_size": len(words) + 1, "special_ids": frozenset([0])}
    return dataclasses.replace(tokenizer, **changes)


BOUNDARY_WORDS = (
    *(b"<think>", b"</think>", b" <answer>", b"</answer>", b"|", b"u", b"P ", b"||", b"<", b"/answer>"),
    *(b"x</answer>Up||", b"up||Down||left||"),
)


@pytest.mark.parametrize("key", FORMATS)
def test_every_short_response_over_awkward_tokens(small, key):
    words = with_tokens(small, BOUNDARY_WORDS)
    form = ResponseGrammar(actions=("Up", "Down"), think=key[0], forced=key[1], max_actions=2)
    rows = [list(row) for row in itertools.product(range(1, words.vocab_size), repeat=4)]
    if key == (True, False):  # the shortest response of this format has four tokens: let the answer be longer
        rows = [[1, 2, 3, *row] for row in rows]
    assert_equal_to_reference(words, form, compile_grammar(form, words), rows)


def test_tokens_that_finish_many_items(small):
    words = [b"Up||Fly||Down||", b"||||", b"</answer><answer>Up</answer>", b"Left", b" ||\xff|| Right\n||"]
    words.append(b"wn</answer>||Up")
    tokens = with_tokens(small, [*words, b"Do"])
    form = moves(False, True, max_actions=4)
    table = compile_grammar(form, tokens)
    assert table.runs.shape[1] == 3
    rows = [list(row) for row in itertools.product(range(len(words) + 2), repeat=4)]
    assert_equal_to_reference(tokens, form, table, rows)


@pytest.mark.parametrize(
    ("actions", "separator"),
    [
        (("look", "look around", "LOOK UP", "go to the |door|"), "||"),
        (("a", "ab", "abc", "ab c"), "|-|"),
        (("naïve", "√", "x<y", "</ans"), ";"),
        ((), ","),
    ],
)
def test_names_that_begin_alike_and_odd_separators(small, actions, separator):
    form = ResponseGrammar(actions=actions, think=False, forced=True, separator=separator, max_actions=3)
    table = compile_grammar(form, small)
    words = [*actions, separator, separator[:1], " ", "\t", "around", "c", "b", "NAÏVE", "</answer>", "<"]
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(words, size=rng.integers(0, 8))) + rng.choice(["</answer>", ""]) for _ in range(400)]
    texts += ["naïve;NAïVE;√</answer>", "a|-|-|b|-||-|ab  c|-|ab c</answer>", "look ||LOOK </answer>"]
    texts += [" look  ||look  around||look around </answer>", "ab ||ab c ||ab </answer>"]
    texts.append(two := separator.join(actions[:2]) + "</answer>")
    assert parse_response(two.encode(), form).actions == tuple(range(len(actions[:2])))
    assert_equal_to_reference(small, form, table, [small.encode(text) for text in texts])


@pytest.mark.parametrize(
    ("response", "actions", "parsed", "kept_format"),
    [
        ("Right || Fly || Up</answer>", (3, 0), 3, True), ("Right || Up", (), 0, False),
        ("Up||Up||Up||Up||Up||Up||Up</answer>", (0, 0, 0, 0, 0), 5, True), ("</answer>", (), 0, True),
        ("uP || DOWN ||left\n||\tRIGHT</answer>", (0, 1, 2, 3), 4, True), (" || || </answer>", (), 0, True),
        ("Fly</answer>", (), 1, True), ("Fly||Fly||Fly||Fly||Fly||Up</answer>", (), 5, True),
        ("Up</answer> and <answer>Down</answer>", (0,), 1, True), ("Up Down</answer>", (), 1, True),
        ("<answer>Up</answer>", (), 1, True), ("Up|||Down</answer>", (0,), 2, True), ("Up</answer", (), 0, False),
        ("Up</answer ></ answer></Answer>", (), 0, False),
    ],
)  # fmt: skip
def test_acceptance_of_responses(small, compiled_grammar, response, actions, parsed, kept_format):
    for think in (False, True):
        form = moves(think, True, max_actions=5)
        text = "I should go there.</think> \n<answer>" + response if think else response
        host = parse_response(text.encode(), form)
        assert (host.actions, host.num_parsed, host.format_ok) == (actions, parsed, kept_format)
        (got,) = device_parse(compiled_grammar(form, small), [small.encode(text)])
        assert tuple(a for a in got.actions.tolist() if a >= 0) == actions
        assert (got.num_valid, got.num_parsed, got.format_ok) == (len(actions), parsed, kept_format)


def test_a_response_of_opening_tags_is_read_once():
    """With time that grows with its square this would take hours."""
    for opening, think in itertools.product((b"<think>", b"<answer>", b"<think></think>"), (False, True)):
        assert not parse_response(opening * 1_000_000, moves(think, think)).format_ok


def test_special_and_outside_tokens_are_invisible(small, compiled_grammar):
    table = compiled_grammar(moves(False, True), small)
    clean = small.encode("Up||Left</answer>")
    noise = [*sorted(small.special_ids), -1, -7, small.vocab_size, small.vocab_size + 5000]
    noisy = [token for one in clean for token in (*noise, one)]
    first, second = device_parse(table, [clean, noisy + noise])
    assert first.actions.tolist() == second.actions.tolist() == [0, 2, -1]
    assert second.format_ok
    spelled = small.encode("U<|end|>p</answer>")
    (third,) = device_parse(table, [spelled])
    assert (third.num_valid, third.num_parsed) == (0, 1)


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        *[({"separator": wrong}, "separator", wrong) for wrong in ("", "<|", "and")],
        ({"max_actions": 0}, "max_actions", 0),
        ({"actions": ("Up", "up")}, "action names", ("Up", "up")),
        *[({"actions": (wrong,)}, "action name", wrong) for wrong in (" Up", "", "Up||Down")],
    ],
)
def test_ambiguous_formats_are_refused(options, key, value):
    with pytest.raises(BadValue) as refused:
        ResponseGrammar(**{"actions": MOVES, "think": False, "forced": True} | options)
    assert (refused.value.key, refused.value.value) == (key, value)


def test_differences_from_a_parser_on_text():
    for response, action, number in (
        *(("\u00a0Up", "Up", 0), ("\x1cUp", "Up", 0), ("<answer>Up", "Up", 0), ("\u212aick", "kick", 0)),
        ("Öffnen||ÖFFNEN||öffnen", "Öffnen", 2),
    ):
        form = ResponseGrammar(actions=(action,), think=False, forced=True)
        assert parse_response(f"{response}</answer>".encode(), form).num_valid == number, response
    assert parse_response(b"Up\xff</answer>", form).items == ("Up\ufffd",)


@pytest.mark.nightly
@settings(max_examples=20)
@given(data=st.data())
def test_any_tokens(large, compiled_grammar, data):
    form = moves(True, True)
    assert_equal_to_reference(large, form, compiled_grammar(form, large), data.draw(response_rows(large)))
