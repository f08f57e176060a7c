"""Growing conversations: the text around contents, in prompts and in chat, and the segments that it is made of."""

import functools

import chat_families
import jax
import numpy as np
import pytest
from chat_families import FAMILIES, PLAIN, as_spoken, family, with_template
from prompt_texts import expected_prefix, message_text, prefix_text, response_text, spell
from tokenizers import AddedToken

from agentrl_jax.errors import BadValue
from agentrl_jax.text import chat, prompt
from agentrl_jax.text.chat_segments import keep, segment_names
from agentrl_jax.text.conversation import conversation_ids, following_ids
from agentrl_jax.text.pieces import encode_pieces
from agentrl_jax.text.styles import get_style

TASK = {"instruction": "Push every box.", "legend": (("#", "wall"),), "actions": ("Up", "Down"), "separator": "||"}
TASK |= {"max_actions_budget": 10, "response_words": 50}


@functools.cache
def compiled(name, style, *, think=False, forced=True):
    room = {"pieces": ("#", "P"), "observation_pieces": 3, "max_turns": 5}
    options = {"think": think, "forced": forced, "tokenizer": family(name)}
    return prompt.compile_prompt(get_style(style), **TASK, **room, **options)


def episode(name, form, turns):
    """Text of an episode with canonical responses up to the next response, and its responses without end of turn."""
    text, responses = prefix_text(form, family(name)), []
    for turn in range(turns):
        fields = {"turn": turn, "actions_left": 9 - turn, "reward": 0.5, "first": turn == 0}
        text += message_text(form, "#P", **fields, response_ended=turn > 0)
        if turn < turns - 1:
            response = response_text(form, family(name), [turn % 2])
            responses.append(response)
            text += response
    return text, responses


@pytest.mark.parametrize("style", ["compact", "ragen"])
@pytest.mark.parametrize("name", [name for name in PLAIN if name != "llama2"])
def test_an_episode_is_a_conversation_of_the_template(name, style):
    """The template's text for the contents of three turns, plus the forced tag."""
    form, segments = compiled(name, style), chat.segments(family(name))
    text, responses = episode(name, form, 3)
    end = chat.chat_format(family(name)).end_of_turn
    assert all(response.endswith(f"</answer>{end}") for response in responses)
    contents = []
    shape = (["user"] if segments.system_refusal else ["system", "user"]) + ["assistant", "user"] * 2
    first, *borders = [segments.texts[key] for key in segment_names(shape, generate=True)]
    assert text.startswith(first)
    rest = text.removeprefix(first)
    for border in borders:
        content, found, rest = rest.partition(border)
        assert found
        contents.append(content)
    assert rest == "<answer>"
    messages = list(zip(shape, contents))
    assert [content for role, content in messages if role == "assistant"] == [
        "<answer>" + response.removesuffix(end) for response in responses
    ]
    assert segments.template.render(messages, generate=True) + "<answer>" == text


def test_every_family_compiles_both_styles():
    for name in FAMILIES:
        for style in ("compact", "ragen"):
            form = compiled(name, style, think=name == "reasoner")
            text, _ = episode(name, form, 2)
            assert text.count("#P") == 2
            assert text.startswith(prefix_text(form, family(name)))
            assert prefix_text(form, family(name)) == expected_prefix(
                style, family(name), think=name == "reasoner", **TASK
            )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral v3", "<s>[INST] # wall\nUp Down\n\n#P\n9[/INST]<answer>Up</answer></s>[INST] #P\n8[/INST]<answer>"),
        (
            "llama2",
            "<s>[INST] <<SYS>>\n# wall\nUp Down\n<</SYS>>\n\n#P\n9 [/INST]<answer>Up</answer></s>"
            "<s>[INST] #P\n8 [/INST]<answer>",
        ),
    ],
)
def test_words_of_the_system_open_the_first_message_where_there_is_none(name, text):
    assert episode(name, compiled(name, "compact"), 2)[0] == text


def test_llama2_opens_later_messages_in_another_way():
    fields = {"turn": 1, "actions_left": 8, "reward": 0.5, "response_ended": False}
    written = jax.jit(functools.partial(prompt.message, compiled("llama2", "compact")))
    for first, start in ((True, "#P"), (False, " </s><s>[INST] #P")):
        tokens, length = written(np.array([0, 1, -1]), **fields, first=first)
        text = family("llama2").decode(tokens[: int(length)].tolist(), skip_special=False)
        assert text == f"{start}\n8 [/INST]<answer>"


def inserted_and_sampled(name, **options):
    """Text that a turn inserts after the observation, and the canonical response, which is trained."""
    form = compiled(name, "compact", **options)
    text = message_text(form, "#", turn=1, actions_left=8, reward=0.0, first=True, response_ended=False)
    return text.partition("<|im_end|>\n")[2], response_text(form, family(name), [1])


def test_the_headers_of_responses_and_the_forced_tags_go_together():
    opened, answer = "<|im_start|>assistant\n", "Down</answer><|im_end|>"
    assert inserted_and_sampled("chatml") == (f"{opened}<answer>", answer)
    assert inserted_and_sampled("chatml", forced=False) == (opened, f"<answer>{answer}")
    # An empty think block, which is inserted and never sampled, requests a response without a thought.
    empty = "<think>\n\n</think>\n\n"
    assert inserted_and_sampled("qwen3") == (f"{opened}{empty}<answer>", answer)
    assert inserted_and_sampled("qwen3", forced=False) == (f"{opened}{empty}", f"<answer>{answer}")
    thought = f"</think><answer>{answer}"
    assert inserted_and_sampled("qwen3", think=True) == (f"{opened}<think>", thought)
    assert inserted_and_sampled("qwen3", think=True, forced=False) == (opened, f"<think>{thought}")
    # If the template opens the think block, no second tag is forced.
    assert inserted_and_sampled("reasoner", think=True) == (f"{opened}<think>\n", thought)


@pytest.mark.parametrize(("think", "forced"), [(False, True), (False, False), (True, False)])
def test_a_think_block_that_the_response_format_lacks_is_refused(think, forced):
    with pytest.raises(ValueError, match="opens a think block"):
        compiled("reasoner", "compact", think=think, forced=forced)


@pytest.mark.parametrize(
    "response", ["The answer.", "<think>\nplan\n</think>\n\nThe answer.", "plan</think>The answer."]
)
def test_a_response_given_as_text_is_not_put_into_a_thought_that_its_header_opens(response):
    model = family("reasoner")
    ids = conversation_ids(model, [("user", "hi"), ("assistant", response), ("user", "more")])
    opened, _, rest = model.decode(ids, skip_special=False).partition("assistant\n")[2].partition("The answer.")
    # Only the last was sampled after the header's `<think>`, which it closes.
    assert opened.count("<think>") == opened.count("</think>") == response.count("</think>")
    assert rest.startswith("<|im_end|>")


def test_a_response_with_a_think_block_gets_no_second_one():
    """Where the template always writes one, where it opens one, and where the header of the next response has one."""
    thought = "<think>\nplan\n</think>\n\n"
    talk = [("user", "a"), ("assistant", f"{thought}Up"), ("user", "b")]
    for name, thinking in (("always thinks", None), ("qwen3", False), ("reasoner", None)):
        model = family(name)
        text = model.decode(conversation_ids(model, talk, thinking=thinking), skip_special=False)
        assert text.partition("<|im_start|>user\nb")[0].count("</think>") == 1, name
    model = family("always thinks")
    ids = conversation_ids(model, talk)
    assert model.decode(ids, skip_special=False) == model.template.render(talk, generate=True)
    sampled = [*model.encode(talk[1][1]), model.end_of_turn_id]
    assert ids == [
        *conversation_ids(model, talk[:1]),
        *sampled,
        *following_ids(model, "b", response_ended=True),
    ]
    # A response without a block gets the empty one of the template.
    plain = conversation_ids(model, [talk[0], ("assistant", "Up"), talk[2]])
    assert "assistant\n<think>\n\n</think>\n\nUp<|im_end|>" in model.decode(plain, skip_special=False)


def test_a_response_that_did_not_end_is_ended(small):
    ids = conversation_ids(small, [("system", "s"), ("user", "u"), ("assistant", "a")])
    assert small.decode(ids, skip_special=False) == "<|system|>s<|end|><|user|>u<|end|><|assistant|>a<|end|>"
    unended = small.decode(following_ids(small, "v", response_ended=False), skip_special=False)
    assert unended == "<|end|><|user|>v<|end|><|assistant|>"
    assert small.decode(following_ids(small, "v", response_ended=True), skip_special=False) == unended[7:]
    with pytest.raises(ValueError, match="system message"):
        conversation_ids(small, [("assistant", "a")])


def test_a_tokenizer_without_a_template_has_no_segments(small):
    with pytest.raises(BadValue, match="chat template"):
        chat.segments(small)


def test_the_real_template_and_tokenizer_of_smollm2(smollm2):
    transformers = pytest.importorskip("transformers")
    segments = chat.segments(smollm2)
    source = smollm2.template.source
    backend = type(smollm2.backend).from_str(smollm2.backend.to_str())
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=source)
    for system in ([], [("system", "Be brief.")]):
        messages = [*system, ("user", "How many boxes?\n\n  12?"), ("assistant", " Twelve √."), ("user", "\nTotal?")]
        ids = theirs.apply_chat_template(as_spoken(messages), add_generation_prompt=True, return_dict=False)
        assert encode_pieces(smollm2, segments.pieces(messages, generate=True), joined=True) == ids
    assert all(edit is keep for edit in segments.edits.values())
    assert segments.texts["response_earlier"].startswith(segments.texts["ask"])
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


def test_a_conversation_that_the_template_rewrites_in_its_own_way_is_refused():
    with pytest.raises(ValueError, match=r"changes this conversation: it writes .*<think>"):
        chat.segments(family("qwen3")).pieces([("user", "a"), ("assistant", "Left</think>Up")], generate=False)


def test_roles_out_of_order_are_refused():
    segments = chat.segments(family("chatml"))
    for roles in ([], ["assistant"], ["user", "user"], ["system"], ["user", "system"], ["tool", "user"]):
        with pytest.raises(ValueError, match="one system message, then user and assistant"):
            segments.pieces([(role, "x") for role in roles], generate=False)
    with pytest.raises(ValueError, match=r"no system message with this chat template: .*roles must alternate"):
        chat.segments(family("mistral")).pieces([("system", "x"), ("user", "y")], generate=False)


TURN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ASK = "{{ '<|im_start|>assistant\n' if add_generation_prompt }}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (TURN.replace("m.role }}", "m.role }} {{ loop.index }}") + ASK, r"'.*assistant 4"),
        ("{{ messages | length }}" + TURN + ASK, "the opening of a conversation without a system message"),
        (TURN.replace("m.content", "m.content[:2]") + ASK, "message 1 of user"),
        (TURN.replace("m.content", "m.content ~ m.content") + ASK, "once and in its place"),
        (TURN.replace("m.content", "m.content | replace('plain', 'PLAIN')") + ASK, "as content of the system"),
        (TURN.replace("m.content", "m.content | replace('√', 'v')") + ASK, "changes this conversation"),
        (TURN.replace("<|im_end|>", "###") + ASK, "one special token that ends a response"),
        ("{{ messages[0].missing.thing }}", "refuses a conversation of user"),
    ],
)
def test_templates_beyond_segments_are_refused_by_what_differs(source, message):
    with pytest.raises(ValueError, match=message):
        chat.chat_format(with_template(source))


def test_special_tokens_that_take_in_spaces_are_refused():
    backend = chat_families.backend()
    backend.add_special_tokens([AddedToken("<|sep|>", special=True, rstrip=True)])
    greedy = with_template(TURN.replace("<|im_end|>", "<|sep|>") + ASK, {}, backend)
    with pytest.raises(ValueError, match=r"special token <\|sep\|>"):
        chat.chat_format(greedy)
    assert chat.chat_format(with_template(TURN + ASK, {}, backend)).end_of_turn == "<|im_end|>"


def test_segments_are_derived_once():
    again = with_template(*chat_families.FAMILIES["llama3"])
    assert chat.segments(family("llama3")) is chat.segments(again)
