import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest
from parsed_responses import device_parse

from agentrl_jax.errors import BadValue
from agentrl_jax.text.arguments import compile_arguments, find_argument
from agentrl_jax.text.grammar import CommandGrammar, compile_grammar
from agentrl_jax.text.reference import find_command, parse_response

TAGS = (("<search>", "</search>"), ("<answer>", "</answer>"))
FORMATS = [(False, False), (True, False), (True, True)]
WORDS = (
    *(b"<think>", b"</think> ", b" <search>", b"</search>", b"<answer>", b"a</answer>b", b"<", b"/search>"),
    *(b"<search>q</search><answer>", b"</", b"</think><sea", b"rch>\xc3"),
)
SIZE = 6


def command_form(think=False, forced=False, templates=TAGS, names=("search", "answer")):
    return CommandGrammar(actions=names, templates=templates, think=think, forced=forced)


@pytest.fixture(scope="module")
def awkward(small):
    """A tokenizer whose tokens cross the ends of tags."""
    changes = {"token_bytes": (None, *WORDS), "vocab_size": len(WORDS) + 1, "special_ids": frozenset([0])}
    return dataclasses.replace(small, **changes)


def found_on_device(form, tokenizer, rows):
    """(command, argument) of rows of tokens, as `HostResponse` has them, with the bytes that are ignored."""
    table, grammar = compile_arguments(form, tokenizer), compile_grammar(form, tokenizer)
    tokens = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for filled, row in zip(tokens, rows):
        filled[: len(row)] = row
    lengths = np.array([len(row) for row in rows])
    commands = np.array([parsed.actions[0] for parsed in device_parse(grammar, rows)])
    read = jax.jit(jax.vmap(functools.partial(find_argument, table, size=SIZE)))
    return commands, jax.device_get(read(commands, tokens, lengths))


@pytest.mark.parametrize("key", FORMATS)
def test_arguments_are_those_of_the_reference(awkward, key):
    form = command_form(*key)
    rows = [list(row) for row in itertools.product(range(1, len(WORDS) + 1), repeat=3)]
    rows = [[*([1, 2] if key == (True, False) else [2] * key[0]), *row] for row in rows]
    commands, found = found_on_device(form, awkward, rows)
    seen = set()
    for number, row in enumerate(rows):
        data = awkward.decode_bytes(row)
        expected = find_command(data, form)
        if expected is None:
            assert (commands[number], found.length[number], found.ignored[number]) == (-1, 0, 0), data
            continue
        argument = data[expected.first : expected.end]
        rest = len(data) - expected.end - len(TAGS[expected.action][1])
        assert (commands[number], found.length[number]) == (expected.action, len(argument)), data
        assert found.first[number] == expected.first, data
        assert found.text[number].tobytes() == argument[:SIZE].ljust(SIZE, b"\0"), data
        assert found.ignored[number] == rest, data
        seen.add((expected.action, rest > 0, len(argument) > SIZE))
    assert {one[:2] for one in seen} == {(0, False), (0, True), (1, True)}
    assert any(longer for *_, longer in seen)


@pytest.mark.parametrize(
    ("think", "text", "expected"),
    [
        (False, "I wonder. <search>moons of Mars</search>", ("search", "moons of Mars")),
        (False, "<search>a<answer>b</answer>", None),
        (False, "<search>a<answer>b</search>", ("search", "a<answer>b")),
        (False, "</search><answer></answer>", ("answer", "")),
        (False, "<search>a</searc", None),
        (True, "<search>a</search>", None),
        (True, "I <search>guess</search></think>\n <answer>Mars</answer>", ("answer", "Mars")),
        (True, "no</think> then <answer>Mars</answer>", None),
        (True, "a</think>b</think><search>é</search>", ("search", "é")),
    ],
)
def test_responses_with_thoughts(small, think, text, expected):
    form = command_form(think, think)
    host = parse_response(text.encode(), form)
    assert host.format_ok == (expected is not None)
    if expected:
        assert (form.actions[host.actions[0]], host.items[0]) == expected
    commands, found = found_on_device(form, small, [small.encode(text)])
    assert commands[0] == (form.actions.index(expected[0]) if expected else -1)
    assert found.length[0] == (len(expected[1].encode()) if expected else 0)


def test_commands_of_one_line(small):
    """Such as TextCraft's: the argument goes to the end of the answer, or of the line."""
    templates = (("<answer>get ", "</answer>"), ("<answer>craft ", "</answer>"), ("look", "\n"))
    form = command_form(templates=templates, names=("get", "craft", "look"))
    texts = ["<answer>craft 1 a using 2 b</answer>", "<answer>get 2 iron</answer>", "look  \n", "<answer>drop</answer>"]
    commands, found = found_on_device(form, small, [small.encode(text) for text in texts])
    assert commands.tolist() == [1, 0, 2, -1]
    assert found.length.tolist() == [13, 6, 2, 0]


@pytest.mark.parametrize(
    "templates", [(), (("<a>", ""), ("<b>", "</b>")), (("<a>", "</a>"), ("<<a>", "</a>")), (("", "x"), ("a", "b"))]
)
def test_templates_that_cannot_be_told_apart(templates):
    with pytest.raises(BadValue) as error:
        command_form(templates=templates)
    assert error.value.key == "templates"
