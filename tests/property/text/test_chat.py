"""Conversations of every family of templates: whole, against transformers, and message by message."""

import pytest
from chat_families import CASES, NO_SYSTEM, PLAIN, as_spoken, family, upstream
from hypothesis import given, settings
from hypothesis import strategies as st
from prompt_texts import spell

from agentrl_jax.text import chat
from agentrl_jax.text.conversation import conversation_ids, following_ids
from agentrl_jax.text.pieces import encode_pieces

SPELLINGS = ["<|im_end|>", "<|eot_id|>", "</s>", "[INST]", "<|im_start|>user\n", "<s>", "<|end|>"]
WORDS = ["Up", " ", "\n", "\t", "<answer>", "||", "√", "12", "{{ x }}", "{%", "'", "\\n", "Push the box"]
ANY = st.lists(st.sampled_from(WORDS + SPELLINGS) | st.text(max_size=3), max_size=6).map("".join)
PARTS = st.sampled_from(["Up", " ", "\n", "<|im_end|>", "√", "[INST]", "</s>", "a b"])
CONTENT = st.lists(PARTS, max_size=5).map("".join)


@st.composite
def conversations(draw, system, blank):
    """Messages of 1 to 4 turns, and whether the next response is generated; without `blank`, no content is blank."""
    turns, ending = draw(st.integers(1, 4)), draw(st.sampled_from(["user", "generate", "assistant"]))
    roles = ["user", "assistant"] * turns
    roles = roles if ending == "assistant" else roles[:-1]
    roles = ["system"] * (system and draw(st.booleans())) + roles
    contents = [draw(ANY) for _ in roles]
    contents = [content if blank or content.strip() else f"{content}Up" for content in contents]
    return list(zip(roles, contents)), ending == "generate"


@pytest.mark.parametrize(("name", "thinking"), CASES)
@settings(max_examples=10)
@given(data=st.data())
def test_segments_are_the_conversation(name, thinking, data):
    # Llama 2 strips the space around system and first user content together, so an empty one shortens the segment.
    messages, generate = data.draw(conversations(system=name not in NO_SYSTEM, blank=name != "llama2"))
    segments = chat.segments(family(name), thinking)
    pieces = segments.pieces(messages, generate=generate)
    whole = {"conversation": as_spoken(messages), "add_generation_prompt": generate, "date_string": "26 Jul 2024"}
    whole |= {} if thinking is None else {"enable_thinking": thinking}
    if name != "mistral v7":  # it uses the date, which transformers does not accept as an argument
        assert spell(pieces) == upstream(name).apply_chat_template(**whole, tokenize=False)
        if not any(spelling in content for _, content in messages for spelling in ("<", "[")):
            ids = upstream(name).apply_chat_template(**whole, return_dict=False)
            assert encode_pieces(family(name), pieces, joined=True) == ids


@pytest.mark.parametrize(("name", "thinking"), CASES)
@settings(max_examples=10)
@given(contents=st.lists(CONTENT, min_size=3, max_size=7), system=st.booleans(), ended=st.booleans())
def test_a_conversation_is_only_ever_added_to(name, thinking, contents, system, ended):
    model = family(name)
    form = chat.chat_format(model, thinking)
    lead = [("system", contents[0])] if system else []
    # A response closes the think block that its header has opened, or it would be given to the next without it.
    closing = "</think>" if form.opens_thought else ""
    spoken = [closing + text if index % 2 else text for index, text in enumerate(contents[1:])]
    messages = [*lead, *zip(("user", "assistant") * 3, spoken)]
    messages = messages if messages[-1][0] == "user" else messages[:-1]
    first = 1 + len(lead)
    ids = conversation_ids(model, messages[:first], thinking=thinking)
    for (_, response), (_, asked) in zip(messages[first::2], messages[first + 1 :: 2]):
        # A response given as text is written by the template; a sampled response would stay unchanged.
        response = form.edits["response_earlier"](response)
        ids += encode_pieces(model, (*form.response_lead, response))
        if ended and len(form.response_end) == 1:
            ids += [model.end_of_turn_id, *following_ids(model, asked, response_ended=True, thinking=thinking)]
        else:
            ids += following_ids(model, asked, response_ended=False, thinking=thinking)
    assert ids == conversation_ids(model, messages, thinking=thinking)
    if (
        name in PLAIN
        and (name != "llama2" or all(content.strip() for content in contents))
        and not (system and chat.segments(model).system_refusal)
    ):
        assert model.decode(ids, skip_special=False) == model.template.render(messages, generate=True)
