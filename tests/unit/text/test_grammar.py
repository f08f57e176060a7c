"""The compiled automaton against `re` on bytes."""

import dataclasses
import functools
import itertools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed_responses import follow

from agentrl_jax.text import grammar
from agentrl_jax.text.grammar import ResponseGrammar, compile_grammar
from agentrl_jax.text.reference import parse_response

MOVES = ("Up", "Down", "Left", "Right")
BATCH, LENGTH = 32, 24
LARGE_FORMATS = [(False, False), (True, True)]
FORMATS = [(think, forced) for think in (False, True) for forced in (False, True)]


def moves(think, forced, **options):
    return ResponseGrammar(actions=MOVES, think=think, forced=forced, **{"max_actions": 3} | options)


def device_parse(table, rows):
    """Parses rows of token ids; compiles once per shape of table and batch."""
    batch = max(BATCH, len(rows))
    tokens = np.zeros((batch, max([LENGTH, *map(len, rows)])), np.int32)
    for slot, row in zip(tokens, rows):
        slot[: len(row)] = row
    lengths = np.array([*map(len, rows)] + [0] * (batch - len(rows)), np.int32)
    found = jax.device_get(follow(table, tokens, lengths))
    return [jax.tree.map(lambda leaf, i=i: leaf[i], found) for i in range(len(rows))]


def assert_equal_to_reference(tokenizer, form, table, rows):
    for row, got in zip(rows, device_parse(table, rows)):
        data = tokenizer.decode_bytes(row)
        want = parse_response(data, form)
        padded = [*want.actions, *[-1] * (form.max_actions - len(want.actions))]
        assert got.actions.tolist() == padded, data
        assert (got.num_valid, got.num_parsed) == (want.num_valid, want.num_parsed), data
        assert got.format_ok == want.format_ok, data


@pytest.fixture(scope="module")
def tables(small, compiled_grammar):
    return {key: compiled_grammar(moves(*key), small) for key in FORMATS}


@pytest.fixture(scope="module")
def five_moves(small, compiled_grammar):
    return {think: compiled_grammar(moves(think, True, max_actions=5), small) for think in (False, True)}


@pytest.fixture(scope="module")
def large_tables(large, compiled_grammar):
    return {key: compiled_grammar(moves(*key), large) for key in LARGE_FORMATS}


FRAGMENTS = [
    *["<think>", "</think>", "<answer>", "</answer>", "||", "|", "Up", "down", "LEFT", "Right", "Fly", " ", "\n\t\v"],
    *["<", "</", "an", "swer>", "think>", "U", "p", "x", "√", "你", "\u00a0", "\u212a", "<answer> Up||Up </answer>"],
    *[
        "</think> \n<answer>",
        "</think><think>",
        "Left||||Up",
        "|||Up|",
        "ſ",
        "</ANSWER>",
        "\x1c",
        "|</answer>",
        "</answer",
        ">",
    ],
]


@functools.cache
def response_rows(tokenizer):
    """Rows of tokens: encoded fragments mixed with arbitrary tokens, special tokens and partial characters."""
    telling = [i for i, data in enumerate(tokenizer.token_bytes) if data and set(b"<>/|\n") & set(data)]
    halves = [
        i for i, data in enumerate(tokenizer.token_bytes) if data in (b"\xe2", b"\x88", b"\x9a", b"\xc2", b"\xa0")
    ]
    fragment = st.sampled_from(FRAGMENTS).map(tokenizer.encode)
    single = st.sampled_from(telling) | st.integers(0, tokenizer.vocab_size - 1) | st.sampled_from(halves)
    special = st.sampled_from(sorted(tokenizer.special_ids))
    pieces = st.one_of(fragment, fragment, fragment, single.map(lambda i: [i]), special.map(lambda i: [i]))
    row = st.lists(pieces, max_size=20).map(lambda parts: [i for part in parts for i in part][:LENGTH])
    closing = tokenizer.encode("</think><answer>")
    ending = tokenizer.encode("</answer>")
    likely = row.map(lambda ids: ([*closing, *ids][: LENGTH - len(ending)] + ending)[:LENGTH])
    return st.lists(row | likely, min_size=1, max_size=BATCH)


@pytest.mark.parametrize("key", FORMATS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_tokens_small(small, tables, key, data):
    assert_equal_to_reference(small, moves(*key), tables[key], data.draw(response_rows(small)))


@pytest.mark.parametrize("key", LARGE_FORMATS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_tokens_large(large, large_tables, key, data):
    assert_equal_to_reference(large, moves(*key), large_tables[key], data.draw(response_rows(large)))


def with_tokens(tokenizer, words):
    """A tokenizer whose ordinary tokens are `words`, ids from 1 on; 0 is special."""
    token_bytes = (None, *words)
    return dataclasses.replace(
        tokenizer, token_bytes=token_bytes, vocab_size=len(token_bytes), special_ids=frozenset([0])
    )


BOUNDARY_WORDS = [
    *[b"<think>", b"</think>", b" <answer>", b"</answer>", b"|", b"u", b"P ", b"||", b"<", b"/answer>"],
    *[b"x</answer>Up||", b"up||Down||left||"],
]


@pytest.mark.parametrize("key", FORMATS)
def test_every_short_response_over_awkward_tokens(small, key):
    words = with_tokens(small, BOUNDARY_WORDS)
    form = ResponseGrammar(actions=("Up", "Down"), think=key[0], forced=key[1], max_actions=2)
    rows = [list(row) for row in itertools.product(range(1, words.vocab_size), repeat=4)]
    if key == (True, False):  # the shortest response of this format has four tokens: let the answer be longer
        rows = [[1, 2, 3, *row] for row in rows]
    assert_equal_to_reference(words, form, compile_grammar(form, words), rows)


def test_tokens_that_finish_many_items(small):
    words = [
        b"Up||Fly||Down||",
        b"||||",
        b"</answer><answer>Up</answer>",
        b"Left",
        b" ||\xff|| Right\n||",
        b"wn</answer>||Up",
    ]
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
    texts += [
        "naïve;NAïVE;√</answer>",
        "a|-|-|b|-||-|ab  c|-|ab c</answer>",
        " look  ||look  around||look around </answer>",
    ]
    texts += ["look ||LOOK </answer>", "ab ||ab c ||ab </answer>"]
    texts.append(two := separator.join(actions[:2]) + "</answer>")
    assert parse_response(two.encode(), form).actions == tuple(range(len(actions[:2])))
    assert_equal_to_reference(small, form, table, [small.encode(text) for text in texts])


@pytest.mark.parametrize(
    ("response", "actions", "parsed", "kept_format"),
    [
        ("Right || Fly || Up</answer>", (3, 0), 3, True),
        ("Right || Up", (), 0, False),
        ("Up||Up||Up||Up||Up||Up||Up</answer>", (0, 0, 0, 0, 0), 5, True),
        ("uP || DOWN ||left\n||\tRIGHT</answer>", (0, 1, 2, 3), 4, True),
        ("</answer>", (), 0, True),
        (" || || </answer>", (), 0, True),
        ("Fly</answer>", (), 1, True),
        ("Fly||Fly||Fly||Fly||Fly||Up</answer>", (), 5, True),
        ("Up</answer> and <answer>Down</answer>", (0,), 1, True),
        ("Up Down</answer>", (), 1, True),
        ("<answer>Up</answer>", (), 1, True),
        ("Up|||Down</answer>", (0,), 2, True),
        ("Up</answer", (), 0, False),
        ("Up</answer ></ answer></Answer>", (), 0, False),
    ],
)
def test_acceptance_of_responses(small, five_moves, response, actions, parsed, kept_format):
    for think in (False, True):
        form = moves(think, True, max_actions=5)
        text = "I should go there.</think> \n<answer>" + response if think else response
        host = parse_response(text.encode(), form)
        assert (host.actions, host.num_parsed, host.format_ok) == (actions, parsed, kept_format)
        (got,) = device_parse(five_moves[think], [small.encode(text)])
        assert tuple(a for a in got.actions.tolist() if a >= 0) == actions
        assert (got.num_valid, got.num_parsed, got.format_ok) == (len(actions), parsed, kept_format)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("a</think><answer>Up</answer>", True),
        ("a</think>b</think><answer>Up</answer>", True),
        ("a</think> b <answer>Down</answer></think><answer>Up</answer>", True),
        ("<think>a</think></think>\r\n<answer>Up</answer>", True),
        ("a</think>\u00a0<answer>Up</answer>", False),
        ("a<answer>Up</answer>", False),
        ("a</think></think><answer Up</answer>", False),
        ("a</think> </think <answer>Up</answer>", False),
    ],
)
def test_broken_and_nested_think_blocks(small, tables, response, answer):
    form = moves(True, True)
    assert parse_response(response.encode(), form).actions == ((0,) if answer else ())
    assert_equal_to_reference(small, form, tables[True, True], [small.encode(response)])


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


@pytest.mark.parametrize("opening", ["<think>", "<answer>", "<think></think>"])
def test_a_response_of_opening_tags_is_read_once(opening):
    """With time that grows with its square this would take hours."""
    for think in (False, True):
        assert not parse_response(opening.encode() * 1_000_000, moves(think, think)).format_ok


def test_an_opening_tag_that_is_not_forced_must_be_written(small, tables):
    for think in (False, True):
        body = "x</think><answer>Up</answer>" if think else "Up</answer>"
        opening = "<think>" if think else "<answer>"
        written, missing = device_parse(tables[think, False], [small.encode(opening + body), small.encode(body)])
        assert (bool(written.format_ok), bool(missing.format_ok)) == (True, False)
        assert moves(think, False).forced_text == ""
        assert moves(think, True).forced_text == opening


def test_special_and_outside_tokens_are_invisible(small, tables):
    clean = small.encode("Up||Left</answer>")
    noise = [*sorted(small.special_ids), -1, -7, small.vocab_size, small.vocab_size + 5000]
    noisy = [token for one in clean for token in (*noise, one)]
    first, second = device_parse(tables[False, True], [clean, noisy + noise])
    assert first.actions.tolist() == second.actions.tolist() == [0, 2, -1]
    assert second.format_ok
    spelled = small.encode("U<|end|>p</answer>")
    (third,) = device_parse(tables[False, True], [spelled])
    assert (third.num_valid, third.num_parsed) == (0, 1)


def test_closing_absorbs(small, tables):
    table = tables[False, True]
    advance = jax.jit(grammar.advance)
    state = grammar.start(table)
    assert not grammar.closed(table, state)
    for token in small.encode("Up||Down</answer>"):
        assert not grammar.closed(table, state)
        state = advance(table, state, np.int32(token))
    assert grammar.closed(table, state)
    after = state
    for token in [*small.encode("||Left</answer>"), small.end_of_turn_id]:
        after = advance(table, after, np.int32(token))
    chex.assert_trees_all_equal(after, state)


def test_states_keep_their_types_and_shapes(tables):
    table = tables[True, True]
    state = grammar.start(table)
    after = jax.eval_shape(lambda s: grammar.advance(table, s, jnp.int32(3)), state)
    chex.assert_trees_all_equal_shapes_and_dtypes(after, state)
    assert jax.tree.map(lambda x: x.weak_type, after) == jax.tree.map(lambda x: x.weak_type, state)


def test_tables_are_small(tables, large_tables):
    for table in [*tables.values(), *large_tables.values()]:
        assert sum(leaf.nbytes for leaf in jax.tree.leaves(table)) < 8 * 2**20
        chex.assert_equal_shape([table.next_state, table.emission])
        assert table.token_class.shape in ((tables[True, True].token_class.shape), (49152,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"separator": ""}, "separator ''"),
        ({"separator": "<|"}, "separator '<|'"),
        ({"separator": "and"}, "separator 'and'"),
        ({"max_actions": 0}, "max_actions 0"),
        ({"actions": ("Up", "up")}, "differ only in case"),
        ({"actions": (" Up",)}, "action name ' Up'"),
        ({"actions": ("",)}, "action name ''"),
        ({"actions": ("Up||Down",)}, r"action name 'Up\|\|Down'"),
    ],
)
def test_ambiguous_formats_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ResponseGrammar(**{"actions": MOVES, "think": False, "forced": True} | options)


def test_differences_from_a_parser_on_text(small):
    """Responses that only RAGEN or only this grammar accepts; listed in `reference`."""
    form = moves(False, True)
    assert parse_response("\u00a0Up</answer>".encode(), form).num_valid == 0
    assert parse_response(b"\x1cUp</answer>", form).num_valid == 0
    kelvin = ResponseGrammar(actions=("kick",), think=False, forced=True)
    assert "\u212aick".lower() == "kick"
    assert parse_response("\u212aick</answer>".encode(), kelvin).num_valid == 0
    assert parse_response(b"Up\xff</answer>", form).items == ("Up\ufffd",)
    assert parse_response(b"<answer>Up</answer>", form).num_valid == 0
    umlaut = ResponseGrammar(actions=("Öffnen",), think=False, forced=True)
    assert parse_response("Öffnen||ÖFFNEN||öffnen</answer>".encode(), umlaut).actions == (0, 0)


@functools.cache
def slot_names():
    """Names that consist of a verb and some of three slots, ids in the order of the slots."""
    things = [f"{color} {kind}" for kind in ("ball", "box", "open door", "door") for color in ("red", "green", "gray")]
    return (
        *("look", "look up", "drop"),
        *(f"go to {thing} {number}" for thing in things for number in (1, 2, 3)),
        *(f"go through {thing} {number}" for thing in things[6:] for number in (1, 2, 3)),
    )


def test_names_with_slots_share_states(small):
    form = ResponseGrammar(actions=slot_names(), think=False, forced=True, max_actions=3)
    table = compile_grammar(form, small)
    # 57 names of about 16 bytes; without sharing there would be a state for each prefix.
    prefixes = {name[:k] for name in slot_names() for k in range(len(name) + 1)}
    assert table.next_state.shape[0] < len(prefixes) / 2
    rows = [small.encode(f" {name.upper()} </answer>") for name in slot_names()]
    found = [got.actions.tolist() for got in device_parse(table, rows)]
    assert found == [[number, -1, -1] for number in range(len(slot_names()))]


@settings(max_examples=60, deadline=None)
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


@functools.cache
def slot_table(tokenizer):
    return compile_grammar(ResponseGrammar(actions=slot_names(), think=False, forced=True, max_actions=3), tokenizer)
