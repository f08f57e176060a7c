"""Messages as tokens against the same messages as joined strings."""

import re

import chex
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed_responses import follow
from prompt_texts import expected_prefix, message_text, prefix_text, response_text
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from agentrl_jax.text import grammar, prompt, tokenizer
from agentrl_jax.text.styles import FEEDBACK, get_style

SYMBOLS = "#_O√XPS"
MEANINGS = ("wall", "floor", "target", "box on target", "box", "you", "you on target")
MOVES = ("Up", "Down", "Left", "Right")
PIECES = (*SYMBOLS, "\n", "Player at ", "12", "Ünïcode 你")
ROOM = 43
BOARD = "######\n#__O_#\n#_XP_#\n#____#\n#√S__#\n######"
BATCH = 16


def compiled(tokenizer, style="compact", **options):
    settings = {
        "instruction": "Push every box onto a target.",
        "legend": tuple(zip(SYMBOLS, MEANINGS)),
        "actions": MOVES,
        "pieces": PIECES,
        "observation_pieces": ROOM,
        "think": False,
        "forced": True,
        "separator": "||",
        "max_actions_budget": 10,
        "max_turns": 5,
        "response_words": 100,
        "tokenizer": tokenizer,
        "feedback": FEEDBACK,
    }
    return prompt.compile_prompt(get_style(style), **settings | options)


@jax.jit
def messages(form, observation, fields):
    return jax.vmap(lambda row, kw: prompt.message(form, row, **kw))(observation, fields)


@jax.jit
def one_message(form, observation, fields):
    return prompt.message(form, observation, **fields)


responses = jax.jit(jax.vmap(prompt.response, (None, 0, 0)))


def board_ids(text):
    ids = [PIECES.index(symbol) for symbol in text]
    return ids + [-1] * (ROOM - len(ids))


FIELDS = st.fixed_dictionaries(
    {
        "turn": st.integers(0, 4),
        "actions_left": st.integers(0, 10),
        "reward": st.floats(-30, 30, width=32),
        "first": st.booleans(),
        "response_ended": st.booleans(),
        "retry": st.booleans(),
    }
)
CASES = st.lists(
    st.tuples(st.lists(st.integers(-1, len(PIECES) - 1), max_size=ROOM), FIELDS), min_size=1, max_size=BATCH
)
STYLES = [(style, think) for style in ("compact", "ragen") for think in (False, True)]


@pytest.fixture(scope="module")
def prompts(any_tokenizer):
    return {
        (style, think): compiled(any_tokenizer, style, think=think, forced=style == "compact")
        for style, think in STYLES
    }


@pytest.mark.parametrize("key", STYLES)
@settings(max_examples=15, deadline=None)
@given(cases=CASES)
def test_tokens_of_a_message_are_its_text(any_tokenizer, prompts, key, cases):
    form = prompts[key]
    rows = np.full((BATCH, ROOM), -1, np.int32)
    for row, (ids, _) in zip(rows, cases):
        row[: len(ids)] = ids
    kinds = {"turn": np.int32, "actions_left": np.int32, "reward": np.float32}
    kinds |= dict.fromkeys(("first", "response_ended", "retry"), bool)
    filled = [fields for _, fields in cases] + [cases[0][1]] * (BATCH - len(cases))
    fields = {name: np.array([one[name] for one in filled], kind) for name, kind in kinds.items()}
    tokens, lengths = jax.device_get(messages(form, rows, fields))
    chex.assert_shape(tokens, (BATCH, form.max_message_tokens))
    for (ids, one), row, length in zip(cases, tokens, lengths):
        text = message_text(form, "".join(PIECES[i] for i in ids if i >= 0), **one)
        assert length <= form.max_message_tokens
        assert any_tokenizer.decode(row[:length].tolist(), skip_special=False) == text
        assert (row[length:] == any_tokenizer.pad_id).all()


@pytest.mark.parametrize("key", STYLES)
def test_tokens_of_the_prefix_are_its_text(any_tokenizer, prompts, key):
    form, (style, think) = prompts[key], key
    expected = expected_prefix(
        style,
        any_tokenizer,
        instruction="Push every box onto a target.",
        legend=tuple(zip(SYMBOLS, MEANINGS)),
        actions=MOVES,
        think=think,
        separator="||",
        max_actions_budget=10,
        response_words=100,
    )
    assert form.prefix.dtype == np.int32
    assert any_tokenizer.decode(form.prefix.tolist(), skip_special=False) == expected


@pytest.mark.parametrize(("style", "think"), [("compact", True), ("ragen", False)])
def test_canonical_responses_parse_to_their_actions(any_tokenizer, prompts, compiled_grammar, style, think):
    form = prompts[style, think]
    rng = np.random.default_rng(1)
    actions, counts = rng.integers(0, 4, (BATCH, 3)).astype(np.int32), np.arange(BATCH, dtype=np.int32) % 4
    tokens, lengths = jax.device_get(responses(form, actions, counts))
    chex.assert_shape(tokens, (BATCH, form.max_response_tokens(3)))
    rules = grammar.ResponseGrammar(actions=MOVES, think=think, forced=style == "compact", max_actions=3)
    table = compiled_grammar(rules, any_tokenizer)
    parsed = jax.device_get(follow(table, tokens, lengths))
    for i, count in enumerate(counts):
        row = tokens[i, : lengths[i]].tolist()
        assert any_tokenizer.decode(row, skip_special=False) == response_text(
            form, any_tokenizer, actions[i, :count].tolist()
        )
        assert row[-1] == any_tokenizer.end_of_turn_id
        assert parsed.actions[i].tolist() == [*actions[i, :count], *[-1] * (3 - count)]
        assert parsed.num_parsed[i] == count
        assert parsed.format_ok[i]


def test_compact_words(small):
    form = compiled(small)
    assert prefix_text(form, small) == (
        "<|system|># wall _ floor O target √ box on target X box P you S you on target\nUp Down Left Right"
    )
    later = {"turn": 1, "actions_left": 7, "reward": -0.1, "first": False}
    text = message_text(form, "#P\n_G", **later, response_ended=False)
    assert text == "<|end|><|user|>#P\n_G\n7<|assistant|><answer>"
    assert message_text(form, "#P\n_G", **later, response_ended=True) == text.removeprefix("<|end|>")
    assert response_text(form, small, [3, 0]) == "Right||Up</answer><|end|>"
    assert response_text(compiled(small, think=True), small, [3]) == "</think><answer>Right</answer><|end|>"


@pytest.mark.parametrize(
    ("style", "encoder"),
    [*((style, "pieces") for style in ("compact", "ragen", "chat", "bare")), ("ragen", "canonical")],
)
def test_feedback_is_in_retries_alone(small, style, encoder):
    """And a prompt without it is the same but for the room of its messages."""
    form, plain = (compiled(small, style, encoder=encoder, feedback=text) for text in (FEEDBACK, ""))
    assert form.max_message_tokens - plain.max_message_tokens == len(small.encode(FEEDBACK)) == 28
    fields = {"turn": 1, "actions_left": 7, "reward": -0.1, "response_ended": False}
    for first in (True, False):
        written = {
            (name, retry): one_message(prompt, np.array(board_ids(BOARD)), fields | {"first": first, "retry": retry})
            for name, prompt in (("form", form), ("plain", plain))
            for retry in (True, False)
        }
        texts = {
            key: small.decode(tokens[:length].tolist(), skip_special=False) for key, (tokens, length) in written.items()
        }
        once = texts["form", False]
        assert once == texts["plain", False] == texts["plain", True]
        head, tail = texts["form", True].split(FEEDBACK)
        assert head + tail == once
        assert BOARD in tail
    np.testing.assert_array_equal(form.prefix, plain.prefix)


@pytest.mark.parametrize("style", ["compact", "ragen"])
def test_actions_that_are_not_listed_can_still_be_said(small, style):
    listed, silent = compiled(small, style), compiled(small, style, lists_actions=False)
    text = prefix_text(silent, small)
    assert not any(name in text for name in (*MOVES, "Available"))
    assert len(text) < len(prefix_text(listed, small))
    assert response_text(silent, small, [3, 0]) == response_text(listed, small, [3, 0])
    assert silent.max_response_tokens(5) == listed.max_response_tokens(5)
    assert silent.max_message_tokens == listed.max_message_tokens


def test_compact_turns_are_short(small):
    form = compiled(small)
    fields = {"turn": 1, "actions_left": 10, "reward": 0.0, "first": False, "response_ended": False}
    _, length = one_message(form, np.array(board_ids(BOARD)), fields)
    assert length == 36 + 5 + 7
    assert form.max_response_tokens(5) == 11
    assert len(form.prefix) <= 32


def test_ragen_words(small):
    form = compiled(small, "ragen", think=True)
    prefix = prefix_text(form, small)
    for part in (
        "Push every box onto a target.",
        "√ is box on target",
        "Up, Down, Left, Right",
        "at most 10 actions",
        "||",
    ):
        assert part in prefix
    assert prefix.startswith("<|system|>")
    assert prefix.count("<|end|>") == 1
    fields = {"turn": 2, "actions_left": 4, "reward": -0.3, "response_ended": False}
    later = message_text(form, "#P", **fields, first=False)
    assert later.startswith("<|end|><|user|>Reward:\n-0.3\n\nTurn 3:\nState:\n#P\nActions left: 4.\n")
    assert later.endswith("in at most 100 words.<|end|><|assistant|><think>")
    assert "<think> your reasoning </think><answer> your actions </answer>" in later
    first = message_text(form, "#P", **fields, first=True)
    assert first == later[later.index("Turn 3") :]
    assert "<think>" not in message_text(compiled(small, "ragen"), "#P", **fields, first=True)
    assert response_text(form, small, [3, 0]) == "</think><answer>Right || Up</answer><|end|>"


def test_chat_marks_follow_the_tokenizer(large, small):
    form = compiled(large, "ragen")
    assert prefix_text(form, large).startswith("<|im_start|>system\nYou solve")
    assert "<|im_end|>\n<|im_start|>user\nPush" in prefix_text(form, large)
    fields = {"turn": 1, "actions_left": 4, "reward": 0.0, "first": False}
    text = message_text(form, "#", **fields, response_ended=True)
    assert text.startswith("\n<|im_start|>user\nReward:\n0.0\n")
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n<answer>")
    assert message_text(form, "#", **fields, response_ended=False) == "<|im_end|>" + text

    backend = Backend.from_str(small.backend.to_str())
    names = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    backend.add_special_tokens([AddedToken(name, special=True) for name in names])
    llama_tokenizer = tokenizer.from_json(backend.to_str(), end_of_turn="<|eot_id|>")
    llama = compiled(llama_tokenizer)
    start = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n# wall"
    assert prefix_text(llama, llama_tokenizer).startswith(start)
    text = message_text(llama, "#", **fields, response_ended=False)
    assert text.startswith("<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n#\n4<|eot_id|>")


def test_a_tokenizer_without_chat_tokens_is_refused(small):
    bare = Backend.from_str(small.backend.to_str().replace("<|user|>", "<|thing|>"))
    with pytest.raises(ValueError, match="no special tokens for a conversation"):
        compiled(tokenizer.from_json(bare.to_str()))


def test_observations_of_tokens(small):
    """The text of a host environment is encoded on the host; its tokens replace piece ids."""
    form = compiled(small, pieces=None)
    text = "Sie sehen <|end|> drei Türen.\nUp?"
    ids = small.encode(text)
    row = np.array(ids + [-1] * (ROOM - len(ids)))
    fields = {"turn": 0, "actions_left": 10, "reward": 0.0, "first": True, "response_ended": False}
    tokens, length = one_message(form, row, fields)
    got = tokens[: int(length)].tolist()
    assert small.decode(got, skip_special=False) == message_text(form, text, **fields)
    assert got[1 : 1 + len(ids)] == ids
    assert form.max_message_tokens < compiled(small).max_message_tokens


def test_limits_of_pieces_bound_the_message(small):
    def room(limits):
        options = {"pieces": ("x", "you stand on ice"), "observation_pieces": 5, "piece_limits": limits}
        return compiled(small, **options).max_message_tokens

    long = len(small.encode("you stand on ice"))
    assert room(()) - room((5, 0)) == 5 * (long - 1)
    assert room((5, 2)) - room((5, 0)) == 2 * (long - 1)
    assert room((1, 2)) - room((1, 0)) == 2 * long


def test_a_response_can_be_given_more_room(small):
    form = compiled(small)
    short = jax.jit(prompt.response, static_argnums=3)
    tokens, length = short(form, np.array([1, 2]), np.int32(2), 16)
    chex.assert_shape(tokens, (16,))
    assert length == 5


def test_wrong_names_are_refused(small):
    with pytest.raises(ValueError, match="prompt style is terse, expected one of compact, ragen"):
        get_style("terse")
    with pytest.raises(ValueError, match="encoder is whole, expected one of pieces, canonical"):
        compiled(small, encoder="whole")


@pytest.mark.parametrize(("name", "style"), [("small", "compact"), ("small", "ragen"), ("large", "ragen")])
def test_canonical_messages_have_the_tokens_of_their_text(request, name, style):
    """After the prefix, with no boundaries but special tokens; the same for a response."""
    known = request.getfixturevalue(name)
    form = compiled(known, style, encoder="canonical", think=True)
    for first in (True, False):
        fields = {"turn": 1, "actions_left": 7, "reward": -0.3, "first": first, "response_ended": False}
        row = observation_ids(BOARD)
        tokens, length = jax.jit(prompt.message)(form, row, **fields)
        text = message_text(form, BOARD, **fields)
        written = np.asarray(tokens)[: int(length)].tolist()
        if first:
            written, text = form.prefix.tolist() + written, prefix_text(form, known) + text
        assert written == encode_around_special(known, text)
    tokens, length = jax.jit(prompt.response)(form, np.array([1, 2]), np.int32(2))
    assert np.asarray(tokens)[: int(length)].tolist() == encode_around_special(
        known, response_text(form, known, [1, 2])
    )


def test_observations_of_tokens_have_no_canonical_encoder(small):
    with pytest.raises(ValueError, match="encoder canonical is for compiled environments"):
        compiled(small, pieces=None, encoder="canonical")


def observation_ids(board):
    ids = [PIECES.index(symbol) for symbol in board]
    return np.array(ids + [-1] * (ROOM - len(ids)), np.int32)


def encode_around_special(tokenizer, text):
    names = {tokenizer.special_name(i): i for i in tokenizer.special_ids}
    tokens = []
    for part in re.split("(" + "|".join(map(re.escape, names)) + ")", text):
        tokens += [names[part]] if part in names else tokenizer.encode(part)
    return tokens
