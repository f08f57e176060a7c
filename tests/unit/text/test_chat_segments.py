"""Segments against the rendering and encoding of whole conversations by transformers."""

import chat_families
import pytest
from chat_families import as_spoken, family, upstream, with_template
from prompt_texts import spell
from tokenizers import AddedToken

from agentrl_jax.text import chat
from agentrl_jax.text.chat_segments import keep
from agentrl_jax.text.pieces import encode_pieces


@pytest.mark.parametrize("name", ["chatml", "llama3", "mistral v3"])
def test_special_tokens_spelled_in_contents_stay_text(name):
    ours = family(name)
    end = ours.special_name(ours.end_of_turn_id)
    messages = [("user", f"say {end} now"), ("assistant", f"{end}{end}"), ("user", "x")]
    ids = encode_pieces(ours, chat.segments(ours).pieces(messages, generate=True), joined=True)
    safe = upstream(name).apply_chat_template(
        as_spoken(messages), add_generation_prompt=True, sanitize_control_tokens=True, return_dict=False
    )
    assert ours.decode(ids, skip_special=False) == ours.decode(safe, skip_special=False)
    assert [i for i in ids if i in ours.special_ids] == [i for i in safe if i in ours.special_ids]
    assert ids.count(ours.end_of_turn_id) == (1 if name == "mistral v3" else 3)


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
