import pytest

from agentrl_jax.services import action_parsing
from agentrl_jax.services.action_parsing import MANY_ACTIONS, ParsedAction, react_response, reader_of
from agentrl_jax.services.catalog import NAMES

MEGABYTE = 1 << 20
LAST = {
    "Thought:\nHm.\n\nAction:\nopen door to kitchen": "open door to kitchen", "Action: one\ntwo": "one\ntwo",
    "Action: wait\nAction: look around</s>": "look around", "Action: look around</s>\n": "look around",
    "Action: use a, (b) on c!\n": "use a, (b) on c!", "Action:": "", "open door": "", "": "",
}  # fmt: skip
LINE = {
    "Thought:\nI see a ball.\n\nAction:\ngo to red ball 1": "go to red ball 1",
    "Action: move forward\nand then some": "move forward", "Action:\n\n  \t turn left.": "turn left",
    "Action: get 1 oak_log,  2 [iron]": "get 1 oaklog, 2 iron", "Action: prendre\tla\u00a0clé": "prendrelacl",
    "Action:   \n ": "", "action: turn": "", "Action: say Action: twice": "say Action twice",
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


@pytest.mark.parametrize("reader", ACTIONS)
def test_the_action_of_a_response(reader):
    for response, action in ACTIONS[reader].items():
        assert getattr(action_parsing, reader)(response) == ParsedAction(action), response


def test_responses_that_are_answered_without_asking_the_server():
    for response in ("Action: a\nAction: b", "Action: a\n\nThought: no.\nAction:\nb"):
        assert action_parsing.single_line_action(response) == ParsedAction(None, MANY_ACTIONS)
    assert MANY_ACTIONS == "Error: Only one 'Action' is allowed per response. Please adjust your response."
    for response in ("", "click [7]", "```click [7]", "``click [7]``", "`````"):
        found = action_parsing.fenced(response)
        assert found.action is None
        assert found.complaint.startswith("Cannot parse action from response.")


def test_every_environment_of_agentgym_has_its_reader_and_its_layout_of_responses():
    readers = {"webshop": "shop_action", "webarena": "fenced", "sqlgym": "sql_fence", "alfworld": "last_action"}
    readers |= {"sciworld": "last_action", "babyai": "single_line_action", "textcraft": "single_line_action"}
    readers |= {"maze": "first_action", "wordle": "first_action"}
    readers |= dict.fromkeys(("weather", "todo", "movie", "sheet", "academia", "searchqa"), "raw")
    assert {name: reader_of(name).__name__ for name in NAMES} == readers
    assert react_response("turn left", "Hm.") == "Thought:\nHm.\n\nAction:\nturn left"


@pytest.mark.parametrize("name", NAMES)
def test_a_megabyte_of_one_thing_is_read_in_linear_time(name):
    # A quadratic parser would take hours here.
    for piece in ("Action:", "Action:\n", "Action: ", " ", "\n", ":", "`", "```sql", "</s>", "\U0001f600", "\ud800"):
        text = piece * (MEGABYTE // len(piece))
        for response in (text, f"Action:{text}x"):
            reading = reader_of(name)(response)
            assert (reading.action is None) == bool(reading.complaint)
