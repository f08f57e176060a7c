"""The reference parser for whole responses on the host, on bytes and in linear time.

It defines the meaning of a response. The compiled automaton is tested against it, and host environments use it.

Differences from RAGEN's parser, which works on decoded text (RAGEN, context manager; arXiv 2504.20073):

* Spaces and letter case are those of ASCII. A no-break space does not strip, and the Kelvin sign is not a `k`.
* Bytes that are not UTF-8 are kept; RAGEN sees U+FFFD.
* A tag inside a block is part of its content, so `<answer><answer>Up</answer>` names an unknown action. RAGEN deletes
  such tags, and the spelling of chat tokens, from the content and would find `Up`.
* Nothing is rewritten: sampled tokens enter the context unchanged.
* Characters outside ASCII in action names must have the case in which they are declared.
"""

import dataclasses
import functools
import re
from typing import NamedTuple

from agentrl_jax.text.grammar import AnyGrammar, CommandGrammar, PlainResponse

_ANSWER_AFTER_THOUGHT = re.compile(rb"</think>\s*<answer>")


@dataclasses.dataclass(frozen=True)
class HostResponse:
    """The parsed actions of one response, on the host."""

    actions: tuple[int, ...]
    """Ids of the known actions among the first `max_actions` items; `(0,)` for a `PlainResponse`."""
    items: tuple[str, ...]
    """These items as written, known or not, without outer spaces; for a `PlainResponse` one item, the whole text, with
    `grammar.forced_text` and outer spaces; for a `CommandGrammar` one item, the argument with outer spaces."""
    format_ok: bool
    """All blocks are present and closed; otherwise there are no items. Always true for a `PlainResponse`."""

    @property
    def num_valid(self) -> int:
        """Number of known actions."""
        return len(self.actions)

    @property
    def num_parsed(self) -> int:
        """Number of items, known or not."""
        return len(self.items)


def parse_response(data: bytes, grammar: AnyGrammar) -> HostResponse:
    """Parses `grammar.forced_text`, which was inserted before the response, and the bytes of the response."""
    if isinstance(grammar, PlainResponse):
        return HostResponse((0,), (grammar.opening + data.decode("utf-8", "replace"),), True)
    if isinstance(grammar, CommandGrammar):
        command = find_command(data, grammar)
        if command is None:
            return HostResponse((), (), False)
        argument = data[command.first : command.end].decode("utf-8", "replace")
        return HostResponse((command.action,), (argument,), True)
    answer = _answer(grammar.forced_text.encode() + data, think=grammar.think)
    if answer is None:
        return HostResponse((), (), False)
    items = [item.strip() for item in answer.split(grammar.separator.encode())]
    kept = [item for item in items if item][: grammar.max_actions]
    ids = _ids(grammar.actions)
    return HostResponse(
        actions=tuple(ids[item.lower()] for item in kept if item.lower() in ids),
        items=tuple(item.decode("utf-8", "replace") for item in kept),
        format_ok=True,
    )


class Command(NamedTuple):
    """A command in the bytes of a response: its id, and where its argument begins and ends."""

    action: int
    first: int
    end: int


def find_command(data: bytes, grammar: CommandGrammar) -> Command | None:
    """Finds the command in the bytes of a response, without what was inserted before them."""
    openings = {opening.encode(): number for number, (opening, _) in enumerate(grammar.templates)}
    pattern, thought = b"(" + b"|".join(map(re.escape, openings)) + b")", 0
    if grammar.think:
        pattern = rb"</think>\s*" + pattern
        thought = 0 if grammar.forced else data.find(b"<think>")
        if thought < 0:
            return None
    opened = re.compile(pattern).search(data, thought)
    if opened is None:
        return None
    action = openings[opened[1]]
    end = data.find(grammar.templates[action][1].encode(), opened.end())
    return None if end < 0 else Command(action, opened.end(), end)


@functools.cache
def _ids(actions: tuple[str, ...]) -> dict[bytes, int]:
    return {name.encode().lower(): number for number, name in enumerate(actions)}


def _answer(data: bytes, *, think: bool) -> bytes | None:
    """The content of the first answer block, with `think` of the first that follows a closed thought; None without one.

    No later opening is tried: a block that the first one lacks is missing after the others too.
    """
    if think:
        thought = data.find(b"<think>")
        after = _ANSWER_AFTER_THOUGHT.search(data, thought + len(b"<think>")) if thought >= 0 else None
        start = after.end() if after else -1
    else:
        opening = data.find(b"<answer>")
        start = opening + len(b"<answer>") if opening >= 0 else -1
    end = data.find(b"</answer>", start) if start >= 0 else -1
    return data[start:end] if end >= 0 else None
