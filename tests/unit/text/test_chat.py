"""Growing conversations: the text inserted around contents, in prompts and in chat, for every family of templates."""

import functools

import jax
import numpy as np
import pytest
from chat_families import FAMILIES, PLAIN, family
from prompt_texts import expected_prefix, message_text, prefix_text, response_text

from agentrl_jax.errors import BadValue
from agentrl_jax.text import chat, prompt
from agentrl_jax.text.chat_segments import keep, segment_names
from agentrl_jax.text.conversation import conversation_ids, conversation_pieces, following_ids
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


def test_words_of_the_system_open_the_first_message_where_there_is_none():
    form = compiled("mistral v3", "compact")
    assert prefix_text(form, family("mistral v3")) == "<s>[INST] # wall\nUp Down\n\n"
    text, _ = episode("mistral v3", form, 2)
    assert text.startswith("<s>[INST] # wall\nUp Down\n\n#P\n9[/INST]<answer>Up</answer></s>[INST] #P\n8[/INST]")


def test_llama2_opens_later_messages_in_another_way():
    text, _ = episode("llama2", compiled("llama2", "compact"), 2)
    system = "<s>[INST] <<SYS>>\n# wall\nUp Down\n<</SYS>>\n\n"
    assert text == f"{system}#P\n9 [/INST]<answer>Up</answer></s><s>[INST] #P\n8 [/INST]<answer>"
    fields = {"turn": 1, "actions_left": 8, "reward": 0.5, "response_ended": False}
    written = jax.jit(functools.partial(prompt.message, compiled("llama2", "compact")))
    for first, start in ((True, "#P"), (False, " </s><s>[INST] #P")):
        tokens, length = written(np.array([0, 1, -1]), **fields, first=first)
        assert (
            family("llama2").decode(tokens[: int(length)].tolist(), skip_special=False) == f"{start}\n8 [/INST]<answer>"
        )


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


def test_segments_are_mostly_encoded_as_the_whole_text(smollm2):
    def same(messages):
        pieces = conversation_pieces(chat.chat_format(smollm2), messages)
        return conversation_ids(smollm2, messages) == encode_pieces(smollm2, pieces, joined=True)

    assert same([("user", "How many?"), ("assistant", "Twelve."), ("user", "Sure?")])
    assert same([("system", "Hi"), ("user", "x")])
    assert not same([("user", "\n\nHow many?")])  # the header's newline would merge with the content's


SPACES = {"first_user", "user", "response_earlier", "response_last"}
"""Contents whose outer white space Llama's templates drop."""


@pytest.mark.parametrize(
    ("name", "thinking", "edited", "starts", "ends"),
    [
        ("chatml", None, set(), True, 1), ("chatml with default", None, set(), True, 1),
        ("qwen3", None, {"response_last"}, True, 1), ("qwen3", False, {"response_last"}, False, 1),
        *[(name, None, SPACES | {"system"}, True, 1) for name in ("llama3", "llama3.1", "llama3.2")],
        ("llama2", None, SPACES, True, 2), ("mistral", None, set(), True, 1), ("mistral v3", None, set(), True, 1),
        ("reasoner", None, set(), False, 1),
    ],
)  # fmt: skip
def test_what_a_growing_conversation_has_in_another_way(name, thinking, edited, starts, ends):
    """Contents that are edited, whether earlier responses begin as the next one does, and the pieces that end one."""
    found = chat.segments(family(name), thinking)
    assert {kind for kind, edit in found.edits.items() if edit is not keep} == edited
    assert found.texts["response_earlier"].startswith(found.texts["ask"]) == starts
    assert len(chat.chat_format(family(name), thinking).response_end) == ends
    assert bool(found.system_refusal) == (name in ("mistral", "mistral v3"))


def test_a_tokenizer_without_a_template_has_no_segments(small):
    with pytest.raises(BadValue, match="chat template"):
        chat.segments(small)


def test_default_system_messages_are_the_templates_own():
    asked = [("user", "x")]
    text = family("chatml with default").decode(
        conversation_ids(family("chatml with default"), asked), skip_special=False
    )
    assert text.startswith("<|im_start|>system\nYou are a small model and glad to help.<|im_end|>\n<|im_start|>user\nx")
    dated = family("llama3.2").decode(conversation_ids(family("llama3.2"), asked), skip_special=False)
    assert "Today Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nx<|eot_id|>" in dated
