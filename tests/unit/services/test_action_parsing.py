"""Responses parsed as by AgentGym's clients: which text becomes the action, and which is answered without a server."""

import subprocess
import sys

import hypothesis
import hypothesis.strategies as st
import pytest

from agentrl_jax.services.action_parsing import (
    MANY_ACTIONS,
    READERS,
    ParsedAction,
    fenced,
    first_action,
    last_action,
    raw,
    react_response,
    shop_action,
    single_line_action,
    sql_fence,
)

MEGABYTE = 1 << 20
ANY_TEXT = st.text(st.one_of(st.sampled_from("Action: \n`sql</s>[]\r\t"), st.characters(exclude_categories=())))


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("Thought:\nI see a ball.\n\nAction:\ngo to red ball 1", "go to red ball 1"),
        ("Action: move forward\nand then some", "move forward"),
        ("Action:\n\n  \t turn left.", "turn left"),
        ("Action: craft 4 stick  using 2 minecraft:planks!", "craft 4 stick using 2 minecraftplanks"),
        ("Action: get 1 oak_log, 2 [iron]", "get 1 oaklog, 2 iron"),
        ("Action: go\tto\u00a0door", "gotodoor"),
        ("Action: prendre la clé", "prendre la cl"),
        ("Action:", ""),
        ("Action:   \n ", ""),
        ("turn right", ""),
        ("action: turn right", ""),
        ("Action: say Action: twice", "say Action twice"),
        ("Action:\nAction: toggle", "Action toggle"),
    ],
)
def test_rule_r_reads_one_line_without_signs(response, action):
    assert single_line_action(response) == ParsedAction(action)


@pytest.mark.parametrize("response", ["Action: a\nAction: b", "Action: a\n\nThought: no.\nAction:\nb"])
def test_rule_r_refuses_two_actions_without_asking_the_server(response):
    reading = single_line_action(response)
    assert reading == ParsedAction(None, MANY_ACTIONS)
    assert reading.complaint == "Error: Only one 'Action' is allowed per response. Please adjust your response."


@pytest.mark.parametrize("reader", [last_action, shop_action])
@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("Thought:\nHm.\n\nAction:\nopen door to kitchen", "open door to kitchen"),
        ("Action: wait\nAction: look around</s>", "look around"),
        ("Action: look around</s>\n", "look around"),
        ("Action: use a, (b) on c!\n", "use a, (b) on c!"),
        ("Action: one\ntwo", "one\ntwo"),
        ("Action:", ""),
        ("open door", ""),
        ("", ""),
    ],
)
def test_the_last_action_counts(reader, response, action):
    assert reader(response) == ParsedAction(action)


def test_a_shop_command_needs_no_mark():
    assert shop_action("search[red shoes]</s>") == ParsedAction("search[red shoes]")
    assert shop_action("I want it.\nclick[buy now]") == ParsedAction("I want it.\nclick[buy now]")
    assert shop_action("search[a]\nAction: click[b]") == ParsedAction("click[b]")
    assert last_action("search[red shoes]") == ParsedAction("")


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("Thought: up.\nAction: move up", "move up"),
        ("Action: s h i r e \nAction: c r a n e", "s h i r e"),
        ("  move left\n", "move left"),
        ("Action: move up</s>", "move up"),
        ("", ""),
    ],
)
def test_the_first_action_counts_in_maze_and_wordle(response, action):
    assert first_action(response) == ParsedAction(action)


def test_raw_responses_pass_unchanged():
    assert raw(" <search>who</search>\n") == ParsedAction(" <search>who</search>\n")


@pytest.mark.parametrize("response", ["so ```click [7]``` it is", "``````", "```\nstop [x]\n```"])
def test_a_fenced_response_passes_whole(response):
    assert fenced(response) == ParsedAction(response)


@pytest.mark.parametrize("response", ["", "click [7]", "```click [7]", "``click [7]``", "`````"])
def test_a_response_without_a_pair_of_fences_is_answered_locally(response):
    reading = fenced(response)
    assert reading.action is None
    assert reading.complaint.startswith("Cannot parse action from response.")


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("Thought: x\n\nAction: ```sql\nSELECT 1;\n```", "SELECT 1;"),
        ("```sql SELECT 1``` or ```sql SELECT 2``` ok", "SELECT 2"),
        ("```sql\nSELECT 3", "SELECT 3"),
        ("SELECT 4", "SELECT 4"),
        ("SELECT 5 ```x```", "SELECT 5"),
    ],
)
def test_the_last_sql_block_counts(response, action):
    assert sql_fence(response) == ParsedAction(action)


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
    assert READERS["babyai"] is READERS["textcraft"] is single_line_action
    assert READERS["webarena"] is fenced


@pytest.mark.parametrize("name", READERS)
@hypothesis.given(response=ANY_TEXT)
def test_no_text_makes_a_reader_fail(name, response):
    reading = READERS[name](response)
    assert (reading.action is None) == bool(reading.complaint)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "piece",
    ["Action:", "Action:\n", "Action: ", " ", "\n", "Action", ":", "`", "```sql", "</s>", "\U0001f600", "\ud800"],
)
def test_a_megabyte_of_one_thing_is_read_in_linear_time(name, piece):
    # A quadratic parser would take hours here.
    text = piece * (MEGABYTE // len(piece))
    READERS[name](text)
    READERS[name]("Action:" + text + "x")


def test_reading_responses_loads_no_jax_and_no_web_library():
    code = (
        "import sys\n"
        "import agentrl_jax.services.action_parsing, agentrl_jax.services.items\n"
        "sys.exit(', '.join({'jax', 'httpx', 'fastapi'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
