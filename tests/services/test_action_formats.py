"""The three action formats: calls are read without being run, and any command goes there and back."""

import json
import threading

import hypothesis
import hypothesis.strategies as st
import pytest

from agentrl_jax.services.action_formats import INVALID, LONGEST_REPLY, Move, describe, parser, reader, writer
from agentrl_jax.services.action_functions import FUNCTIONS, NUMBERS, from_command, to_command
from agentrl_jax.services.replies import READERS, Reading

WRITTEN = ("function_calling", "code_as_action")
FORMATS = ("react", *WRITTEN)
CASES = [(environment, function) for environment, functions in FUNCTIONS.items() for function in functions]


def call(name, arguments, thought="t"):
    return json.dumps({"thought": thought, "function_name": name, "arguments": arguments})


COMMANDS = [
    ("webshop", "search", {"keywords": "red shoes"}, "search[red shoes]"),
    ("webshop", "click", {"item": "< prev"}, "click[< prev]"),
    ("alfworld", "goto", {"recep": "desk 1"}, "go to desk 1"),
    ("alfworld", "take", {"obj": "mug 1", "recep": "desk 1"}, "take mug 1 from desk 1"),
    ("alfworld", "put", {"obj": "mug 1", "recep": "desk 1"}, "put mug 1 in/on desk 1"),
    ("alfworld", "heat", {"obj": "mug 1", "recep": "microwave 1"}, "heat mug 1 with microwave 1"),
    ("alfworld", "examine", {"recep": "desk 1"}, "examine desk 1"),
    ("alfworld", "examine", {"recep": "desk 1", "obj": "lamp 1"}, "examine desk 1 with lamp 1"),
    ("alfworld", "inventory", {}, "inventory"),
    ("sciworld", "connect", {"obj1": "a", "obj2": "b"}, "connect a to b"),
    ("sciworld", "use", {"tool": "thermometer"}, "use thermometer"),
    ("sciworld", "use", {"tool": "thermometer", "obj": ""}, "use thermometer"),
    ("sciworld", "use", {"tool": "thermometer", "obj": None}, "use thermometer"),
    ("sciworld", "use", {"tool": "thermometer", "obj": "water"}, "use thermometer on water"),
    ("sciworld", "lookin", {"obj": "cup"}, "look in cup"),
    ("sciworld", "dunk", {"container": "cup", "liq": "water"}, "dunk cup in water"),
    ("sciworld", "eat", {"food": "apple"}, "eat apple"),
    ("sciworld", "wait", {}, "wait"),
    ("sciworld", "wait", {"duration": 1}, "wait1"),
    ("sciworld", "wait", {"duration": "1"}, "wait1"),
    ("sciworld", "choose", {"option": 0}, "0"),
    ("sciworld", "task", {}, "task"),
]


@pytest.mark.parametrize(("environment", "name", "arguments", "command"), COMMANDS)
def test_a_call_becomes_the_environments_command(environment, name, arguments, command):
    assert reader(environment, "function_calling")(call(name, arguments)) == Reading(command)
    keywords = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    assert reader(environment, "code_as_action")(f"{name}({keywords})") == Reading(command)
    places = ", ".join(map(repr, arguments.values()))
    if name != "examine":  # its optional parameter stands first in the last case
        assert reader(environment, "code_as_action")(f"{name}({places})") == Reading(command)


def test_text_around_the_object_is_skipped():
    reply = f"Sure!\n```json\n{call('search', {'keywords': 'a {b} c'})}\n```\nDone."
    assert parser("webshop", "function_calling")(reply) == Move("search[a {b} c]", "t")


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "{",
        "}{",
        "search[shoes]",
        "[1]",
        "{}",
        '{"thought": "t", "function_name": "search"}',
        call("search", {}),
        call("search", {"keywords": ""}),
        call("search", {"keywords": " "}),
        call("search", {"keywords": "a\nb"}),
        call("search", {"keywords": "a\u2028b"}),
        call("search", {"keywords": True}),
        call("search", {"keywords": 1.5}),
        call("search", {"keywords": None}),
        call("search", {"keywords": ["a"]}),
        call("search", {"keywords": "a", "item": "b"}),
        call("search", "keywords"),
        call("find", {"keywords": "a"}),
        call(["search"], {"keywords": "a"}),
        call("search", {"keywords": "a"}, thought=None),
        call("search", {"keywords": float("nan")}),
        call("search", {"keywords": "a"}) + call("search", {"keywords": "a"}),
        '{"thought": "", "function_name": "search", "arguments": {"keywords": "a", "keywords": "b"}}',
        '{"thought": "\ud800", "function_name": "search", "arguments": {"keywords": "a"}}',
        '{"thought": "", "function_name": "search", "arguments": {"keywords": ' + "9" * 9000 + "}}",
    ],
)
def test_what_is_no_call_in_json_is_invalid(reply):
    assert reader("webshop", "function_calling")(reply) == INVALID


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "# only a thought",
        "search",
        "search['a']",
        "search()",
        "search('')",
        "search('a', 'b')",
        "search('a', keywords='b')",
        "search(keywords='a', keywords='b')",
        "search(words='a')",
        "search(*['a'])",
        "search(**{'keywords': 'a'})",
        "search(f'{1}')",
        "search('a' + 'b')",
        "search(b'a')",
        "search(True)",
        "search(-1)",
        "search(1.0)",
        "search(...)",
        "search(search('a'))",
        "search('a').upper()",
        "(lambda: search('a'))()",
        "__import__('os').system('true')",
        "print('a')",
        "search('a'); search('b')",
        "search('a')\nsearch('b')",
        "x = search('a')",
        "import os",
        "search('a\\nb')",
        "search('a",
        "search('a\0')",
        "search('\ud800')",
        "search(" + "9" * 9000 + ")",
        "Here it is:\n```python\nsearch('a')\n```",
    ],
)
def test_what_is_no_single_call_with_constants_is_invalid(reply):
    assert reader("webshop", "code_as_action")(reply) == INVALID


@pytest.mark.parametrize(
    ("reply", "move"),
    [
        ("```python\n# I need\n# shoes.\nsearch('shoes')\n```", Move("search[shoes]", "I need\nshoes.")),
        ("```\nsearch('#1')  # one\n```</s>", Move("search[#1]", "one")),
        ("\n  search(keywords=\n'it''s')\n# late", Move("search[its]", "late")),
        ("search((7))", Move("search[7]")),
        ("# coding: utf-7\nsearch('\u00e9')", Move("search[\u00e9]", "coding: utf-7")),
    ],
)
def test_comments_are_the_thought(reply, move):
    assert parser("webshop", "code_as_action")(reply) == move


@pytest.mark.parametrize("value", ["-1", "01", "1.0", "x", "", "\u0663", "1" * 10, "open door"])
def test_numbers_take_no_other_text(value):
    assert reader("sciworld", "function_calling")(call("choose", {"option": value})) == INVALID
    assert reader("sciworld", "code_as_action")(f"choose({value!r})") == INVALID


@pytest.mark.parametrize(
    "reply",
    [
        "(" * 90_000,
        "search(" + "-" * 90_000 + "1)",
        "search(" + "[" * 190 + "]" * 190 + ")",
        "search" + ".a" * 45_000 + "()",
        "search(" + "1+" * 45_000 + "1)",
        "search(" + "not " * 20_000 + "1)",
        "search('" + "a" * LONGEST_REPLY + "')",
        "search(" * 10_000,
        "lambda:" * 10_000 + "1",
        "#" * 99_000,
        "\\\n" * 40_000,
    ],
)
def test_deep_or_long_code_is_invalid(reply):
    read = reader("webshop", "code_as_action")
    found = []
    thread = threading.Thread(target=lambda: found.append(read(reply)))
    thread.start()
    thread.join()
    assert found == [INVALID]
    assert read(reply) == INVALID


@pytest.mark.parametrize("inner", ['{"a":' * 19_000 + "1" + "}" * 19_000, '{"a": ' + "[" * 45_000 + "]" * 45_000 + "}"])
def test_deep_or_long_json_is_invalid(inner):
    read = reader("webshop", "function_calling")
    assert read(inner) == INVALID
    assert read('{"thought": "", "function_name": "search", "arguments": ' + inner + "}") == INVALID
    assert read(call("search", {"keywords": "a" * LONGEST_REPLY})) == INVALID


def test_a_value_nested_as_deep_as_json_allows_is_invalid():
    for depth in (100, 900, 950, 980, 1_000):
        inner = "[" * depth + "]" * depth
        reply = '{"thought": "", "function_name": "search", "arguments": {"keywords": ' + inner + "}}"
        assert reader("webshop", "function_calling")(reply) == INVALID


@pytest.mark.parametrize("environment", FUNCTIONS)
@pytest.mark.parametrize("action_format", FORMATS)
@hypothesis.given(
    reply=st.text(st.one_of(st.sampled_from('search("a")\n#{}[]:,`'), st.characters(exclude_categories=())))
)
def test_no_text_makes_a_reader_fail(environment, action_format, reply):
    reading = reader(environment, action_format)(reply)
    assert reading == INVALID or reading.action is not None


WORDS = st.text(min_size=1).map(str.strip).filter(lambda text: text.splitlines() == [text])
JOINTS = ("to", "from", "with", "in/on", "in", "on", "into", "a", "]", "[", "'", '"', "{obj}", "\\", "```")
TRICKY = st.lists(st.sampled_from(JOINTS), min_size=1).map(" ".join)
THOUGHTS = st.lists(st.text(st.characters(exclude_categories=("C", "Z"))), max_size=3).map(
    lambda lines: "\n".join(line for line in lines if line)
)


@pytest.mark.parametrize(("environment", "function"), CASES, ids=lambda case: getattr(case, "name", case))
@hypothesis.settings(max_examples=30)
@hypothesis.given(data=st.data())
def test_every_command_goes_there_and_back(environment, function, data):
    names = data.draw(st.sampled_from([function.parameters, function.required]))
    arguments = {name: data.draw(st.integers(0, 999) if name in NUMBERS else WORDS | TRICKY) for name in names}
    thought = data.draw(THOUGHTS)
    command = to_command(function, arguments)
    assert to_command(*from_command(FUNCTIONS[environment], command)) == command
    for action_format in WRITTEN:
        reply = writer(environment, action_format)(command, thought)
        assert reader(environment, action_format)(reply) == Reading(command)
        assert parser(environment, action_format)(reply) == Move(command, thought)


@pytest.mark.parametrize("environment", FUNCTIONS)
def test_react_goes_there_and_back(environment):
    reply = writer(environment, "react")("look around", "Where am I?")
    assert reply == "Thought:\nWhere am I?\n\nAction:\nlook around"
    assert parser(environment, "react")(reply) == Move("look around", "Where am I?")
    with pytest.raises(ValueError, match="no action"):
        parser(environment, "react")("Thought: nothing")


@pytest.mark.parametrize(
    ("environment", "spelling", "command"),
    [
        ("alfworld", "move mug 1 to desk 1", "put mug 1 in/on desk 1"),
        ("alfworld", "put mug 1 on desk 1", "put mug 1 in/on desk 1"),
        ("alfworld", "put mug 1 in safe 1", "put mug 1 in/on safe 1"),
        ("sciworld", "put down cup", "drop cup"),
        ("sciworld", "dunk cup into water", "dunk cup in water"),
        ("sciworld", "pour water in cup", "pour water into cup"),
    ],
)
def test_other_spellings_are_understood(environment, spelling, command):
    for action_format in WRITTEN:
        reply = writer(environment, action_format)(spelling, "")
        assert reader(environment, action_format)(reply) == Reading(command)


@pytest.mark.parametrize(
    ("environment", "command", "name", "arguments"),
    [
        ("sciworld", "open door to kitchen", "open", {"obj": "door to kitchen"}),
        ("sciworld", "move cup to door to kitchen", "move", {"obj": "cup", "container": "door to kitchen"}),
        ("sciworld", "wait1", "wait", {"duration": 1}),
        ("sciworld", "3", "choose", {"option": 3}),
        ("webshop", "click[a] b]", "click", {"item": "a] b"}),
    ],
)
def test_a_command_is_taken_apart(environment, command, name, arguments):
    function, found = from_command(FUNCTIONS[environment], command)
    assert (function.name, found) == (name, arguments)


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        ("webshop", "buy now"),
        ("webshop", "search[]"),
        ("webshop", "search[a]\n"),
        ("alfworld", "slice apple 1 with knife 1"),
        ("alfworld", "take mug"),
        ("sciworld", "wait 1"),
        ("sciworld", ""),
    ],
)
def test_a_command_without_function_is_named(environment, command):
    with pytest.raises(ValueError, match="no function stands for the command"):
        writer(environment, "function_calling")(command, "")


def test_only_three_environments_have_the_other_formats():
    for name in READERS:
        assert reader(name, "react") is READERS[name]
        if name not in FUNCTIONS:
            for make in (reader, parser, writer, describe):
                with pytest.raises(ValueError, match=f"'{name}' with action format 'code_as_action'.*webshop"):
                    make(name, "code_as_action")
    for make in (reader, parser, writer, describe):
        with pytest.raises(ValueError, match="'chess'"):
            make("chess", "react")
        with pytest.raises(ValueError, match=r"action format 'default'; expected one of react, function_calling"):
            make("webshop", "default")


@pytest.mark.parametrize("environment", FUNCTIONS)
def test_the_description_lists_every_function(environment):
    functions = FUNCTIONS[environment]
    text = describe(environment, "function_calling")
    blocks = json.loads(text[text.index("[") : text.rindex("]") + 1])
    assert [block["function"]["name"] for block in blocks] == [function.name for function in functions]
    assert all(block["type"] == "function" for block in blocks)
    for block, function in zip(blocks, functions):
        parameters = block["function"]["parameters"]
        assert tuple(parameters["properties"]) == function.parameters
        assert tuple(parameters["required"]) == function.required
    code = describe(environment, "code_as_action")
    assert all(f"def {function.name}(" in code for function in functions)
    compile(code.split("```python\n")[1].split("```")[0], "signatures", "exec")
    react = describe(environment, "react")
    assert all(function.command in react for function in functions)


def test_the_example_of_the_description_is_valid():
    for environment in FUNCTIONS:
        example = describe(environment, "code_as_action").rpartition("For example:\n")[2]
        assert reader(environment, "code_as_action")(example).action
    code = describe("sciworld", "code_as_action")
    assert "def use(tool: str, obj: str | None = None):" in code
    assert "def wait(duration: int | None = None):" in code
