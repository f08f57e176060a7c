"""Compiles the format of a command with a free-text argument to an automaton over bytes. Runs on the host.

The openings of all commands are followed side by side until the first one is complete. From then on only the closing
text of that command counts.
"""

import functools
from collections.abc import Hashable
from typing import TYPE_CHECKING, NamedTuple

from agentrl_jax.text import automaton
from agentrl_jax.text.automaton import FIRST_ACTION, NO_ITEM, SPACE, ByteMachine, Prelude

if TYPE_CHECKING:
    from agentrl_jax.text.grammar import CommandGrammar

_CLOSED = "closed"


class _Argument(NamedTuple):
    """State in the argument of a command: the bytes that may be the beginning of its closing text."""

    command: int
    pending: bytes = b""


def build(grammar: "CommandGrammar", *, counts: bool) -> ByteMachine:
    """Builds the automaton.

    It completes one item, the id of the command, where the command closes. With `counts` it completes an item where
    the command opens and one where it closes, which are the numbers of the bytes before: since the beginning of the
    response, and since the opening.
    """
    templates = [(opening.encode(), closing.encode()) for opening, closing in grammar.templates]
    preludes = [automaton.prelude(opening, think=grammar.think, forced=grammar.forced) for opening, _ in templates]
    text = b"".join([*(part for template in templates for part in template), b"<think></think>", SPACE])
    move = functools.partial(_move, templates, preludes, counts)
    first = tuple(automaton.enter(elements, {0}) for elements in preludes)
    return automaton.explore(first, _CLOSED, move, frozenset(text))


def _move(
    templates: list[tuple[bytes, bytes]], preludes: list[Prelude], counts: bool, state: Hashable, byte: int
) -> tuple[Hashable, int, int]:
    if state == _CLOSED:
        return state, NO_ITEM, 0
    if isinstance(state, _Argument):
        closing, pending = templates[state.command][1], state.pending + bytes([byte])
        while not closing.startswith(pending):
            pending = pending[1:]
        if pending == closing:
            return _CLOSED, FIRST_ACTION + (0 if counts else state.command), 0
        return _Argument(state.command, pending), NO_ITEM, int(counts)
    assert isinstance(state, tuple)
    after = tuple(automaton.follow(elements, one, byte) for elements, one in zip(preludes, state))
    if None in after:  # one command at most, because no opening contains another
        return _Argument(after.index(None)), FIRST_ACTION if counts else NO_ITEM, 0
    return after, NO_ITEM, int(counts)
