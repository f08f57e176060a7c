"""A chat format written as a template is read again as the same format."""

import dataclasses

import pytest
from chat_families import family

from agentrl_jax.text.chat import chat_format
from agentrl_jax.text.chat_template import ChatTemplate
from agentrl_jax.text.chat_template_out import write_template
from agentrl_jax.text.conversation import conversation_ids, turn_ids
from agentrl_jax.text.tokenizer import load_small

TURNS = [("system", "Walk."), ("user", "Up?"), ("assistant", "Down || Up</answer>"), ("user", " {{ x }}\n")]
CONVERSATIONS = (TURNS, TURNS[1:], TURNS[:2], TURNS[1:2], TURNS[:3])


@pytest.mark.parametrize("name", ["small", "chatml", "llama3"])
def test_a_written_template_gives_the_same_conversations(name):
    plain = dataclasses.replace(load_small() if name == "small" else family(name), template=None)
    given = chat_format(plain)

    def written(**options):
        return dataclasses.replace(plain, template=ChatTemplate(write_template(given, **options)))

    for turns in CONVERSATIONS:
        assert conversation_ids(written(), turns) == conversation_ids(plain, turns)
        # What the template inserts before responses, and what a caller inserts.
        opened = [(role, "<answer>" * (role == "assistant") + text) for role, text in turns]
        wanted = turn_ids(plain, given, opened, opening="<answer>")
        assert conversation_ids(written(opening="<answer>"), turns) == wanted


def test_a_tag_that_the_template_inserts_is_not_inserted_again():
    """So that a run that starts from an exported policy has the prompts of the first one."""
    plain = load_small()
    source = write_template(chat_format(plain), opening="<answer>")
    opened = chat_format(dataclasses.replace(plain, template=ChatTemplate(source)))
    assert opened.opens("<answer>")
    assert opened.opening("<answer>", forced=True) == ()
    for tag, forced in (("<answer>", False), ("<think>", True)):
        with pytest.raises(ValueError, match="opens an answer block"):
            opened.opening(tag, forced=forced)


def test_a_policy_of_single_turns_reads_the_last_one():
    plain = load_small()
    template = ChatTemplate(write_template(chat_format(plain), single_turn=True))
    for turns, read in ((TURNS, [TURNS[0], TURNS[3]]), (TURNS[1:], TURNS[3:]), (TURNS[:2], TURNS[:2])):
        text = template.render(turns, generate=True)
        assert text == plain.decode(conversation_ids(plain, read), skip_special=False)
