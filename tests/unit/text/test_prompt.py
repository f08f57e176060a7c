import re
from types import SimpleNamespace

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

import envs_jax
from agentrl_jax.config import PromptConfig
from agentrl_jax.errors import BadValue
from agentrl_jax.setup import build
from agentrl_jax.text import grammar, prompt, tokenizer
from agentrl_jax.text.styles import FEEDBACK, get_style

SYMBOLS = "#_O√XPS"
MEANINGS = ("wall", "floor", "target", "box on target", "box", "you", "you on target")
MOVES = ("Up", "Down", "Left", "Right")
PIECES = (*SYMBOLS, "\n", "Player at ", "12", "Ünïcode 你")
ROOM = 43
BOARD = "######\n#__O_#\n#_XP_#\n#____#\n#√S__#\n######"
BATCH = 16
TASK = {
    "instruction": "Push every box onto a target.", "legend": tuple(zip(SYMBOLS, MEANINGS)), "actions": MOVES,
    "separator": "||", "max_actions_budget": 10, "response_words": 100,
}  # fmt: skip


def compiled(tokenizer, style="compact", **options):
    room = {"pieces": PIECES, "observation_pieces": ROOM, "max_turns": 5}
    fixed = {"think": False, "forced": True, "tokenizer": tokenizer, "feedback": FEEDBACK}
    return prompt.compile_prompt(get_style(style), **TASK | room | fixed | options)


@jax.jit
def messages(form, observation, fields):
    return jax.vmap(lambda row, kw: prompt.message(form, row, **kw))(observation, fields)


one_message = jax.jit(lambda form, observation, fields: prompt.message(form, observation, **fields))
responses = jax.jit(jax.vmap(prompt.response, (None, 0, 0)))


def observation_ids(board):
    ids = [PIECES.index(symbol) for symbol in board]
    return np.array(ids + [-1] * (ROOM - len(ids)), np.int32)


LATER = {"turn": 1, "actions_left": 7, "reward": -0.1, "first": False, "response_ended": False}
FIRST = LATER | {"first": True}
NUMBERS = {"turn": st.integers(0, 4), "actions_left": st.integers(0, 10), "reward": st.floats(-30, 30, width=32)}
FIELDS = st.fixed_dictionaries(NUMBERS | dict.fromkeys(("first", "response_ended", "retry"), st.booleans()))
ROW = st.lists(st.integers(-1, len(PIECES) - 1), max_size=ROOM)
STYLES = [(style, think) for style in ("compact", "ragen") for think in (False, True)]


@pytest.fixture(scope="module")
def prompts(any_tokenizer):
    return {key: compiled(any_tokenizer, key[0], think=key[1], forced=key[0] == "compact") for key in STYLES}


@pytest.mark.parametrize("key", STYLES)
@settings(max_examples=15, deadline=None)
@given(cases=st.lists(st.tuples(ROW, FIELDS), min_size=1, max_size=BATCH))
def test_tokens_of_a_message_are_its_text(any_tokenizer, prompts, key, cases):
    form = prompts[key]
    assert prefix_text(form, any_tokenizer) == expected_prefix(key[0], any_tokenizer, think=key[1], **TASK)
    padded = cases + [cases[0]] * (BATCH - len(cases))
    rows = np.array([ids + [-1] * (ROOM - len(ids)) for ids, _ in padded], np.int32)
    kinds = {"turn": np.int32, "actions_left": np.int32, "reward": np.float32}
    fields = {name: np.array([one[name] for _, one in padded], kinds.get(name, bool)) for name in cases[0][1]}
    tokens, lengths = jax.device_get(messages(form, rows, fields))
    chex.assert_shape(tokens, (BATCH, form.max_message_tokens))
    for (ids, one), row, length in zip(padded, tokens, lengths):
        text = message_text(form, "".join(PIECES[i] for i in ids if i >= 0), **one)
        assert length <= form.max_message_tokens
        assert any_tokenizer.decode(row[:length].tolist(), skip_special=False) == text
        assert (row[length:] == any_tokenizer.pad_id).all()


@pytest.mark.parametrize(("style", "think"), [("compact", True), ("ragen", False)])
def test_canonical_responses_parse_to_their_actions(any_tokenizer, prompts, compiled_grammar, style, think):
    form = prompts[style, think]
    rng = np.random.default_rng(1)
    actions, counts = rng.integers(0, 4, (BATCH, 3)).astype(np.int32), np.arange(BATCH, dtype=np.int32) % 4
    tokens, lengths = jax.device_get(responses(form, actions, counts))
    chex.assert_shape(tokens, (BATCH, form.max_response_tokens(3)))
    rules = grammar.ResponseGrammar(actions=MOVES, think=think, forced=style == "compact", max_actions=3)
    parsed = jax.device_get(follow(compiled_grammar(rules, any_tokenizer), tokens, lengths))
    assert parsed.format_ok.all()
    np.testing.assert_array_equal(parsed.num_parsed, counts)
    for i, count in enumerate(counts):
        row = tokens[i, : lengths[i]].tolist()
        text = response_text(form, any_tokenizer, actions[i, :count].tolist())
        assert any_tokenizer.decode(row, skip_special=False) == text
        assert row[-1] == any_tokenizer.end_of_turn_id
        assert parsed.actions[i].tolist() == [*actions[i, :count], *[-1] * (3 - count)]


def test_compact_words(small):
    form = compiled(small)
    assert prefix_text(form, small) == (
        "<|system|># wall _ floor O target √ box on target X box P you S you on target\nUp Down Left Right"
    )
    text = message_text(form, "#P\n_G", **LATER)
    assert text == "<|end|><|user|>#P\n_G\n7<|assistant|><answer>"
    assert message_text(form, "#P\n_G", **LATER | {"response_ended": True}) == text.removeprefix("<|end|>")
    assert response_text(form, small, [3, 0]) == "Right||Up</answer><|end|>"
    assert response_text(compiled(small, think=True), small, [3]) == "</think><answer>Right</answer><|end|>"
    # Short, with room for the largest number of actions.
    assert one_message(form, observation_ids(BOARD), LATER | {"actions_left": 10})[1] == 36 + 5 + 7
    assert form.max_response_tokens(5) == 11
    assert len(form.prefix) <= 32


@pytest.mark.parametrize("style", ["compact", "ragen", "chat", "bare"])
def test_feedback_is_in_retries_alone(small, style):
    form, plain = (compiled(small, style, feedback=text) for text in (FEEDBACK, ""))
    assert form.max_message_tokens - plain.max_message_tokens == len(small.encode(FEEDBACK)) == 28
    np.testing.assert_array_equal(form.prefix, plain.prefix)
    for fields in (FIRST, LATER):
        once = message_text(plain, BOARD, **fields)
        assert message_text(form, BOARD, **fields) == once == message_text(plain, BOARD, **fields, retry=True)
        head, tail = message_text(form, BOARD, **fields, retry=True).split(FEEDBACK)
        assert (head + tail, BOARD in tail) == (once, True)


@pytest.mark.parametrize("style", ["compact", "ragen"])
def test_actions_that_are_not_listed_can_still_be_said(small, style):
    listed, silent = compiled(small, style), compiled(small, style, lists_actions=False)
    assert not any(name in prefix_text(silent, small) for name in (*MOVES, "Available"))
    assert response_text(silent, small, [3, 0]) == response_text(listed, small, [3, 0])
    assert silent.max_response_tokens(5) == listed.max_response_tokens(5)
    assert silent.max_message_tokens == listed.max_message_tokens
    env, params = envs_jax.make("Bandit")
    task = build.make_task("Bandit", env, params, PromptConfig(style=style), small)
    assert not any(arm in prefix_text(task.prompt, small) for arm in env.actions)


def test_ragen_words(small):
    form = compiled(small, "ragen", think=True)
    prefix = prefix_text(form, small)
    legend = ("√ is box on target", "Up, Down, Left, Right", "at most 10 actions", "||")
    assert all(part in prefix for part in (TASK["instruction"], *legend))
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


def test_the_marks_of_llama_are_known_by_their_names(small):
    backend = Backend.from_str(small.backend.to_str())
    names = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    backend.add_special_tokens([AddedToken(name, special=True) for name in names])
    llama = tokenizer.from_json(backend.to_str(), end_of_turn="<|eot_id|>")
    start = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n# wall"
    assert prefix_text(compiled(llama), llama).startswith(start)
    text = message_text(compiled(llama), "#", **LATER)
    assert text.startswith("<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n#\n7<|eot_id|>")


def test_observations_of_tokens(small):
    """The text of a host environment is encoded on the host; its tokens replace piece ids."""
    form = compiled(small, pieces=None)
    text = "Sie sehen <|end|> drei Türen.\nUp?"
    ids = small.encode(text)
    tokens, length = one_message(form, np.array(ids + [-1] * (ROOM - len(ids))), FIRST)
    got = tokens[: int(length)].tolist()
    assert small.decode(got, skip_special=False) == message_text(form, text, **FIRST)
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


def test_groups_of_pieces_bound_the_message(small):
    texts = ("x", "you stand on ice", "you stand on more ice", "a hole")

    def room(groups, size=4):
        options = {"pieces": texts, "observation_pieces": size, "piece_limits": (9, 1, 1, 1)}
        return compiled(small, **options, piece_groups=groups).max_message_tokens

    x, ice, more, hole = (len(small.encode(text)) for text in texts)
    assert x < hole < ice < more
    assert room(()) - room(((1, 4, 1),)) == ice + hole - 2 * x
    assert room(((1, 4, 2),)) - room(((1, 4, 1),)) == ice - x
    assert room(((1, 3, 1), (3, 4, 0))) - room(((1, 4, 0),)) == more - x
    assert room(((1, 4, 2),), size=1) == room((), size=1)


def test_what_cannot_be_compiled_is_refused(small):
    with pytest.raises(BadValue) as refused:
        get_style("terse")
    assert (refused.value.key, refused.value.value) == ("prompt style", "terse")
    for options in ({"encoder": "whole"}, {"encoder": "canonical", "pieces": None}):
        with pytest.raises(BadValue, match=options["encoder"]):
            compiled(small, **options)
    bare = Backend.from_str(small.backend.to_str().replace("<|user|>", "<|thing|>"))
    with pytest.raises(ValueError, match="no special tokens for a conversation"):
        compiled(tokenizer.from_json(bare.to_str()))


@pytest.mark.parametrize(("name", "style"), [("small", "chat"), ("small", "ragen"), ("large", "compact")])
def test_canonical_messages_have_the_tokens_of_their_text(request, name, style):
    """After the prefix, with no boundaries but special tokens; the same for a response."""
    known = request.getfixturevalue(name)
    form = compiled(known, style, encoder="canonical", think=True)
    for fields in ({**fields, "retry": retry} for fields in (FIRST, LATER) for retry in (False, True)):
        tokens, length = one_message(form, observation_ids(BOARD), fields)
        text = message_text(form, BOARD, **fields)
        written = np.asarray(tokens)[: int(length)].tolist()
        if fields["first"]:
            written, text = form.prefix.tolist() + written, prefix_text(form, known) + text
        assert written == encode_around_special(known, text)
    tokens, length = jax.jit(prompt.response)(form, np.array([1, 2]), np.int32(2))
    said = response_text(form, known, [1, 2])
    assert np.asarray(tokens)[: int(length)].tolist() == encode_around_special(known, said)


def encode_around_special(tokenizer, text):
    names = {tokenizer.special_name(i): i for i in tokenizer.special_ids}
    parts = re.split("(" + "|".join(map(re.escape, names)) + ")", text)
    return [i for part in parts for i in ([names[part]] if part in names else tokenizer.encode(part))]


def test_no_token_of_a_canonical_message_joins_it():
    """Its tokens need not end where its parts do."""
    said = {"turn": 1, "actions_left": 2, "reward": 0.0, "first": False, "response_ended": True}
    assert prompt.message_lead(SimpleNamespace(table=None), **said) == 0
