import functools

import chat_families
import pytest
from chat_families import FAMILIES, NO_SYSTEM, PLAIN, family, with_template
from prompt_texts import expected_prefix, message_text, prefix_text, response_text, spell
from tokenizers import AddedToken

from agentrl_jax.errors import BadValue
from agentrl_jax.text import chat, prompt
from agentrl_jax.text.chat_segments import keep
from agentrl_jax.text.conversation import SampledResponse, conversation_ids, following_ids, turn_ids
from agentrl_jax.text.styles import get_style

TASK = {"instruction": "Push every box.", "legend": (("#", "wall"),), "actions": ("Up", "Down"), "separator": "||"}
TASK |= {"max_actions_budget": 10, "response_words": 50}


@functools.cache
def compiled(name, style, *, think=False, forced=True):
    room = {"pieces": ("#", "P"), "observation_pieces": 3, "max_turns": 5}
    options = {"think": think, "forced": forced, "tokenizer": family(name)}
    return prompt.compile_prompt(get_style(style), **TASK, **room, **options)


def episode(name, form, turns):
    text = prefix_text(form, family(name))
    for turn in range(turns):
        fields = {"turn": turn, "actions_left": 9 - turn, "reward": 0.5, "first": turn == 0}
        text += message_text(form, "#P", **fields, response_ended=turn > 0)
        text += response_text(form, family(name), [turn % 2]) if turn < turns - 1 else ""
    return text


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "llama2"])
def test_an_episode_is_a_conversation_of_the_template(name):
    system, asked = "# wall\nUp Down", [f"#P\n{left}" for left in (9, 8, 7)]
    said = [f"<answer>{move}</answer>" for move in ("Up", "Down")]
    messages = [("system", system)] if name not in NO_SYSTEM else []
    asked[0] = asked[0] if messages else f"{system}\n\n{asked[0]}"
    messages += [("user", asked[0]), ("assistant", said[0]), ("user", asked[1]), ("assistant", said[1])]
    text = family(name).template.render([*messages, ("user", asked[2])], generate=True)
    assert episode(name, compiled(name, "compact"), 3) == text + "<answer>"


@pytest.mark.parametrize("style", ["compact", "ragen"])
def test_every_family_compiles_both_styles(style):
    for name in FAMILIES:
        think = name == "reasoner"
        form = compiled(name, style, think=think)
        assert prefix_text(form, family(name)) == expected_prefix(style, family(name), think=think, **TASK)
        assert episode(name, form, 2).count("#P") == 2


@pytest.mark.parametrize(
    ("name", "lead", "closing"),
    [("mistral v3", "# wall\nUp Down\n\n", ""), ("llama2", "<<SYS>>\n# wall\nUp Down\n<</SYS>>\n\n", " ")],
)
def test_words_of_the_system_open_the_first_message_where_there_is_none(name, lead, closing):
    opening = "<s>" if name == "llama2" else ""
    assert episode(name, compiled(name, "compact"), 2) == (
        f"<s>[INST] {lead}#P\n9{closing}[/INST]<answer>Up</answer></s>{opening}[INST] #P\n8{closing}[/INST]<answer>"
    )


EMPTY = "<think>\n\n</think>\n\n"
"""It is inserted and never sampled, and requests a response without a thought."""


@pytest.mark.parametrize(
    ("name", "options", "inserted", "before"),
    [
        ("chatml", {}, "<answer>", ""), ("chatml", {"forced": False}, "", "<answer>"),
        ("qwen3", {}, f"{EMPTY}<answer>", ""), ("qwen3", {"forced": False}, EMPTY, "<answer>"),
        ("qwen3", {"think": True}, "<think>", "</think><answer>"),
        ("qwen3", {"think": True, "forced": False}, "", "<think></think><answer>"),
        # If the template opens the think block, no second tag is forced.
        ("reasoner", {"think": True}, "<think>\n", "</think><answer>"),
    ],
)  # fmt: skip
def test_the_headers_of_responses_and_the_forced_tags_go_together(name, options, inserted, before):
    form = compiled(name, "compact", **options)
    text = message_text(form, "#", turn=1, actions_left=8, reward=0.0, first=True, response_ended=False)
    assert text.partition("<|im_end|>\n")[2] == f"<|im_start|>assistant\n{inserted}"
    assert response_text(form, family(name), [1]) == f"{before}Down</answer><|im_end|>"
    # A think block that the response format lacks.
    for think, forced in ((False, True), (False, False), (True, False)):
        with pytest.raises(ValueError, match="opens a think block"):
            compiled("reasoner", "compact", think=think, forced=forced)


def test_a_response_with_a_think_block_gets_no_second_one():
    """Where the template always writes one, where it opens one, and where the header of the next response has one."""
    thought = "<think>\nplan\n</think>\n\n"
    talk = [("user", "a"), ("assistant", f"{thought}Up"), ("user", "b")]
    for name, thinking in (("always thinks", None), ("qwen3", False), ("reasoner", None), ("chatml", None)):
        model = family(name)
        text = model.decode(conversation_ids(model, talk, thinking=thinking), skip_special=False)
        assert text.partition("<|im_start|>user\nb")[0].count("</think>") == 1, name
    model = family("always thinks")
    ids = conversation_ids(model, talk)
    assert model.decode(ids, skip_special=False) == model.template.render(talk, generate=True)
    sampled = [*model.encode(talk[1][1]), model.end_of_turn_id]
    assert ids == conversation_ids(model, talk[:1]) + sampled + following_ids(model, "b", response_ended=True)
    # A response without a block gets the empty one of the template.
    plain = conversation_ids(model, [talk[0], ("assistant", "Up"), talk[2]])
    assert "assistant\n<think>\n\n</think>\n\nUp<|im_end|>" in model.decode(plain, skip_special=False)
    # A response given as text is not put into a thought that its header opens. Only the last one here was sampled after
    # the header's `<think>`, which it closes.
    model = family("reasoner")
    for response in ("The answer.", "<think>\nplan\n</think>\n\nThe answer.", "plan</think>The answer."):
        ids = conversation_ids(model, [("user", "hi"), ("assistant", response), ("user", "more")])
        opened, _, rest = model.decode(ids, skip_special=False).partition("assistant\n")[2].partition("The answer.")
        assert opened.count("<think>") == opened.count("</think>") == response.count("</think>")
        assert rest.startswith("<|im_end|>")


def test_a_response_that_did_not_end_is_ended(small):
    ids = conversation_ids(small, [("system", "s"), ("user", "u"), ("assistant", "a")])
    assert small.decode(ids, skip_special=False) == "<|system|>s<|end|><|user|>u<|end|><|assistant|>a<|end|>"
    unended = small.decode(following_ids(small, "v", response_ended=False), skip_special=False)
    assert unended == "<|end|><|user|>v<|end|><|assistant|>"
    assert small.decode(following_ids(small, "v", response_ended=True), skip_special=False) == unended[7:]
    for ended, end in ((True, ""), (False, "<|end|>")):
        turns = [("user", "u"), ("assistant", SampledResponse(tuple(small.encode("a")), ended)), ("user", "v")]
        text = small.decode(turn_ids(small, chat.chat_format(small), turns), skip_special=False)
        assert text == f"<|user|>u<|end|><|assistant|>a{end}<|user|>v<|end|><|assistant|>"
    with pytest.raises(ValueError, match="system message"):
        conversation_ids(small, [("assistant", "a")])
    with pytest.raises(BadValue, match="chat template"):
        chat.segments(small)


def test_the_template_of_smollm2_drops_nothing(smollm2):
    assert all(edit is keep for edit in chat.segments(smollm2).edits.values())
    assert len(chat.chat_format(smollm2).response_end) == 1


THOUGHT = "<think>\nThe box is left.\n</think>\n\nUp"


def test_thoughts_of_earlier_responses_are_dropped_as_the_template_drops_them():
    asked = [("user", "a"), ("assistant", THOUGHT), ("user", "b")]
    for thinking in (None, True, False):
        segments = chat.segments(family("qwen3"), thinking)
        earlier = spell(segments.pieces(asked, generate=True))
        assert "assistant\nUp<|im_end|>" in earlier
        assert earlier.endswith("assistant\n" + ("<think>\n\n</think>\n\n" if thinking is False else ""))
        for said, written in ((THOUGHT, THOUGHT), ("Up", "<think>\n\n</think>\n\nUp")):
            last = spell(segments.pieces([("user", "a"), ("assistant", said)], generate=False))
            assert last.endswith(f"assistant\n{written}<|im_end|>\n")
    assert THOUGHT in chat.segments(family("chatml")).pieces(asked, generate=True)


def test_conversations_that_cannot_be_written_are_refused():
    with pytest.raises(ValueError, match=r"changes this conversation: it writes .*<think>"):
        chat.segments(family("qwen3")).pieces([("user", "a"), ("assistant", "Left</think>Up")], generate=False)
    segments = chat.segments(family("chatml"))
    for roles in ([], ["assistant"], ["user", "user"], ["system"], ["user", "system"], ["tool", "user"]):
        with pytest.raises(ValueError, match="one system message, then user and assistant"):
            segments.pieces([(role, "x") for role in roles], generate=False)
    with pytest.raises(ValueError, match=r"no system message with this chat template: .*roles must alternate"):
        chat.segments(family("mistral")).pieces([("system", "x"), ("user", "y")], generate=False)


TURN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ASK = "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("m.role }}", "m.role }} {{ loop.index }}", r"'.*assistant 4"),
        ("{% for", "{{ messages | length }}{% for", "the opening of a conversation without a system message"),
        ("m.content", "m.content[:2]", "message 1 of user"),
        ("m.content", "m.content ~ m.content", "once and in its place"),
        ("m.content", "m.content | replace('plain', 'PLAIN')", "as content of the system"),
        ("m.content", "m.content | replace('√', 'v')", "changes this conversation"),
        ("<|im_end|>", "###", "one special token that ends a response"),
        ("m.content", "messages[0].missing.thing", "refuses a conversation of user"),
    ],
)
def test_templates_beyond_segments_are_refused_by_what_differs(old, new, message):
    with pytest.raises(ValueError, match=message):
        chat.chat_format(with_template(TURN.replace(old, new) + ASK))


def test_special_tokens_that_take_in_spaces_are_refused():
    backend = chat_families.backend()
    backend.add_special_tokens([AddedToken("<|sep|>", special=True, rstrip=True)])
    with pytest.raises(ValueError, match=r"special token <\|sep\|>"):
        chat.chat_format(with_template(TURN.replace("<|im_end|>", "<|sep|>") + ASK, {}, backend))
    assert chat.chat_format(with_template(TURN + ASK, {}, backend)).end_of_turn == "<|im_end|>"
