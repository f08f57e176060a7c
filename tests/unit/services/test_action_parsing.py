"""Responses parsed as by AgentGym's clients: which text becomes the action, and which is answered without a server."""

import hypothesis
import hypothesis.strategies as st
import pytest

from agentrl_jax.services import action_parsing
from agentrl_jax.services.action_parsing import MANY_ACTIONS, READERS, ParsedAction, react_response

MEGABYTE = 1 << 20
ANY_TEXT = st.text(st.one_of(st.sampled_from("Action: \n`sql</s>[]\r\t"), st.characters(exclude_categories=())))
LAST = {
    "Thought:\nHm.\n\nAction:\nopen door to kitchen": "open door to kitchen", "Action: one\ntwo": "one\ntwo",
    "Action: wait\nAction: look around</s>": "look around", "Action: look around</s>\n": "look around",
    "Action: use a, (b) on c!\n": "use a, (b) on c!", "Action:": "", "open door": "", "": "",
}  # fmt: skip
LINE = {
    "Thought:\nI see a ball.\n\nAction:\ngo to red ball 1": "go to red ball 1",
    "Action: craft 4 stick  using 2 minecraft:planks!": "craft 4 stick using 2 minecraftplanks",
    "Action: move forward\nand then some": "move forward", "Action:\n\n  \t turn left.": "turn left",
    "Action: get 1 oak_log, 2 [iron]": "get 1 oaklog, 2 iron", "Action: go\tto\u00a0door": "gotodoor",
    "Action: prendre la clé": "prendre la cl", "Action:": "", "Action:   \n ": "", "turn right": "",
    "Action: say Action: twice": "say Action twice", "Action:\nAction: toggle": "Action toggle", "action: turn": "",
}  # fmt: skip
SHOP = {
    "search[red shoes]</s>": "search[red shoes]", "I want it.\nclick[buy now]": "I want it.\nclick[buy now]",
    "search[a]\nAction: click[b]": "click[b]",
}  # fmt: skip
FIRST = {
    "Thought: up.\nAction: move up": "move up", "Action: s h i r e \nAction: c r a n e": "s h i r e",
    "  move left\n": "move left", "Action: move up</s>": "move up", "": "",
}  # fmt: skip
SQL = {
    "Thought: x\n\nAction: ```sql\nSELECT 1;\n```": "SELECT 1;", "```sql\nSELECT 3": "SELECT 3",
    "```sql SELECT 1``` or ```sql SELECT 2``` ok": "SELECT 2", "SELECT 4": "SELECT 4", "SELECT 5 ```x```": "SELECT 5",
}  # fmt: skip
ACTIONS = {
    "single_line_action": LINE,
    "last_action": LAST | {"search[red shoes]": ""},
    "shop_action": LAST | SHOP,
    "first_action": FIRST,
    "raw": {" <search>who</search>\n": " <search>who</search>\n"},
    "fenced": {text: text for text in ("so ```click [7]``` it is", "``````", "```\nstop [x]\n```")},
    "sql_fence": SQL,
}


@pytest.mark.parametrize(
    ("reader", "response", "action"),
    [(reader, response, action) for reader, table in ACTIONS.items() for response, action in table.items()],
)
def test_the_action_of_a_response(reader, response, action):
    assert getattr(action_parsing, reader)(response) == ParsedAction(action)


def test_responses_that_are_answered_without_asking_the_server():
    for response in ("Action: a\nAction: b", "Action: a\n\nThought: no.\nAction:\nb"):
        assert action_parsing.single_line_action(response) == ParsedAction(None, MANY_ACTIONS)
    assert MANY_ACTIONS == "Error: Only one 'Action' is allowed per response. Please adjust your response."
    for response in ("", "click [7]", "```click [7]", "``click [7]``", "`````"):
        found = action_parsing.fenced(response)
        assert found.action is None
        assert found.complaint.startswith("Cannot parse action from response.")


def test_a_react_response_has_agentgyms_layout():
    assert react_response("turn left", "Hm.") == "Thought:\nHm.\n\nAction:\nturn left"
    assert react_response("wait") == "Thought:\n\n\nAction:\nwait"


@hypothesis.given(st.text("abc 123,", min_size=1).map(lambda text: " ".join(text.split())), st.text("abc. \n"))
def test_every_reader_of_marks_finds_the_action_of_a_react_response(action, thought):
    for name in ("webshop", "alfworld", "babyai", "sciworld", "textcraft", "maze", "wordle"):
        assert READERS[name](react_response(action, thought)) == ParsedAction(action)


def test_there_is_a_reader_for_each_environment_of_agentgym():
    named = "webshop alfworld babyai sciworld textcraft webarena sqlgym maze wordle weather todo movie sheet academia"
    assert set(READERS) == {*named.split(), "searchqa"}
    assert READERS["babyai"] is READERS["textcraft"] is action_parsing.single_line_action
    assert READERS["webarena"] is action_parsing.fenced


@hypothesis.given(response=ANY_TEXT)
def test_no_text_makes_a_reader_fail(response):
    for reader in READERS.values():
        reading = reader(response)
        assert (reading.action is None) == bool(reading.complaint)


@pytest.mark.parametrize("name", READERS)
def test_a_megabyte_of_one_thing_is_read_in_linear_time(name):
    # A quadratic parser would take hours here.
    for piece in ("Action:", "Action:\n", "Action: ", " ", "\n", ":", "`", "```sql", "</s>", "\U0001f600", "\ud800"):
        text = piece * (MEGABYTE // len(piece))
        READERS[name](text)
        READERS[name]("Action:" + text + "x")
