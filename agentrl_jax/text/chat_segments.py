"""Derives the segments of a conversation from a chat template: the text between one content and the next.

The template is rendered on conversations whose contents are markers. The text between two markers is a segment. It may
depend only on the roles before and after it and on whether the conversation ends there. Other templates are refused,
with the first difference in the error message. Runs on the host.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence

from agentrl_jax.errors import BadValue
from agentrl_jax.text.chat_template import ChatTemplate, Message, special_pattern
from agentrl_jax.text.pieces import Piece, Special

SEGMENTS = {
    "open_system": "the opening of a conversation with a system message",
    "after_system": "the text between the system message and the first user message",
    "open_user": "the opening of a conversation without a system message",
    "ask": "the text after a user message when the next response is generated",
    "user_end": "the text after the user message that ends a conversation",
    "response_earlier": "the text before a response that a user message follows",
    "response_last": "the text before the last response",
    "next_user": "the text between a response and the next user message",
    "response_end": "the text after the response that ends a conversation",
}
"""The segments by name. The first two are missing if a template takes no system message."""

RESPONSES = ("response_earlier", "response_last")

CONTENTS = ("system", "first_user", "user", *RESPONSES)
"""The kinds of content that a template may treat in different ways; "first_user" follows a system message."""

_MAX_TURNS = 4
"""Turns of the longest conversation that a template is tested on."""

_SPACES = ("\n\n \tplain\nwords \t\n\n", "\n\nplain\n\n", "  plain  ")
_THOUGHT_END = "</think>"
_THOUGHT = "<think>\nplan\n</think>\n\nThe answer."
_TRIALS = ("Hello.", "<answer>Up || Down</answer>", *_SPACES, "two\nlines\n\nand √ 你", "  {{ x }} {% y %} '\"\\")


def keep(content: str) -> str:
    """Returns a content unchanged."""
    return content


Edit = Callable[[str], str]

_STRIPS: tuple[Edit, ...] = (
    keep,
    str.strip,
    str.lstrip,
    str.rstrip,
    lambda content: content.strip("\n"),
    lambda content: content.lstrip("\n"),
    lambda content: content.rstrip("\n"),
)
"""What a template may do to the white space around a content."""

_THOUGHT_EDITS: tuple[Edit, ...] = (
    keep,
    lambda content: content.split(_THOUGHT_END)[-1],
    lambda content: content.split(_THOUGHT_END)[-1].lstrip("\n"),
    lambda content: content.split(_THOUGHT_END)[-1].strip(),
    str.strip,
)
"""What a template may do to a response with a think block."""


@dataclasses.dataclass(frozen=True)
class ChatSegments:
    """The text that a chat template writes around contents, and how it changes contents.

    Attributes:
        thinking: value of `enable_thinking` passed to the template; None for the template's default.
        texts: the segments by their names in `SEGMENTS`.
        edits: what the template does to each kind of content in `CONTENTS`.
        thoughts: by kind of response, for one with a think block: the name of the segment before it, and its edit.
        system_refusal: why system messages are refused; empty if they are allowed.
    """

    template: ChatTemplate
    thinking: bool | None
    special_names: frozenset[str]
    texts: Mapping[str, str]
    edits: Mapping[str, Edit]
    thoughts: Mapping[str, tuple[str, Edit]]
    system_refusal: str

    def split(self, text: str) -> tuple[Piece, ...]:
        """Splits the text of a segment into pieces: special tokens, and the text between them."""
        parts = re.split(f"({special_pattern(self.special_names).pattern})", text)
        return tuple(Special(part) if i % 2 else part for i, part in enumerate(parts) if part)

    def pieces(self, messages: Sequence[Message], *, generate: bool) -> tuple[Piece, ...]:
        """Returns a conversation exactly as the template writes it, segment by segment and content by content.

        Contents are text pieces: text in them that spells a special token stays text. With `generate`, the conversation
        ends with the header of the next response, after a user message.

        Raises:
            ValueError: the roles are out of order, or the template writes this conversation differently.
        """
        roles = [role for role, _ in messages]
        check_roles(roles)
        names = segment_names(roles, generate)
        if not self.texts.keys() >= set(names):
            raise BadValue(f"no system message with this chat template: {self.system_refusal}", key="system message")
        pieces: list[Piece] = []
        written = ""
        for name, (role, content) in zip(names, messages):
            kind = name if role == "assistant" else "first_user" if name == "after_system" else role
            edit = self.edits[kind]
            if role == "assistant" and _THOUGHT_END in content:
                name, edit = self.thoughts[kind]
            pieces += (*self.split(self.texts[name]), edit(content))
            written += self.texts[name] + edit(content)
        end = self.texts[names[-1]]
        rendered = self.template.render(messages, generate=generate, thinking=self.thinking)
        if rendered != written + end:
            raise BadValue(
                f"the chat template changes this conversation: {_difference(rendered, written + end)}",
                key="chat template",
            )
        return tuple(piece for piece in (*pieces, *self.split(end)) if piece)


def check_roles(roles: Sequence[str]) -> None:
    """Raises a ValueError unless the roles are an optional system, then user and assistant alternately."""
    spoken = list(roles[1:] if roles and roles[0] == "system" else roles)
    if not spoken or spoken != [("user", "assistant")[i % 2] for i in range(len(spoken))]:
        raise BadValue(
            f"a conversation of {', '.join(roles) or 'nothing'}; expected at most one system message, then user and "
            "assistant alternately, the user first",
            key="conversation",
            value=roles,
        )


def segment_names(roles: Sequence[str], generate: bool) -> list[str]:
    """Returns the names of the segments before each message and after the last."""
    names = ["open_system" if roles[0] == "system" else "open_user"]
    for index, role in enumerate(roles[1:], 1):
        if role == "assistant":
            names.append("response_last" if index == len(roles) - 1 else "response_earlier")
        else:
            names.append("after_system" if roles[index - 1] == "system" else "next_user")
    return [*names, "response_end" if roles[-1] == "assistant" else "ask" if generate else "user_end"]


@functools.lru_cache(maxsize=32)
def derive(template: ChatTemplate, special_names: frozenset[str], thinking: bool | None = None) -> ChatSegments:
    """Derives the segments of a template; ValueError if it cannot be expressed by them, which says where."""
    texts = _texts(template, thinking, system=False)
    refusal = ""
    try:
        with_system = _texts(template, thinking, system=True)
        _check_equal(texts, with_system)
    except ValueError as error:
        refusal = str(error)
    else:
        texts = with_system | texts
    plain = ChatSegments(
        template=template,
        thinking=thinking,
        special_names=special_names,
        texts=texts,
        edits=dict.fromkeys(CONTENTS, keep),
        thoughts={kind: (kind, keep) for kind in RESPONSES},
        system_refusal=refusal,
    )
    segments = dataclasses.replace(plain, edits={kind: _find_edit(plain, kind) for kind in CONTENTS})
    segments = dataclasses.replace(segments, thoughts={kind: _find_thought(segments, kind) for kind in RESPONSES})
    for number, (roles, generate) in enumerate(_role_orders(False) + ([] if refusal else _role_orders(True))):
        trials = [_TRIALS[(number + index) % len(_TRIALS)] for index, _ in enumerate(roles)]
        segments.pieces(list(zip(roles, trials)), generate=generate)
    return segments


def _difference(rendered: str, written: str) -> str:
    """Describes where the text of the template and that of the segments first differ."""
    pairs = enumerate(zip(rendered, written))
    at = next((i for i, (a, b) in pairs if a != b), min(len(rendered), len(written)))
    near = slice(max(at - 20, 0), at + 20)
    return f"it writes {rendered[near]!r} where its segments give {written[near]!r}"


def _role_orders(system: bool) -> list[tuple[tuple[str, ...], bool]]:
    """Returns conversations as (roles, generate), ending in a user message, a header or a response."""
    orders = []
    for turns in range(1, _MAX_TURNS + 1):
        roles = ("system",) * system + ("user", "assistant") * turns
        orders += [(roles[:-1], False), (roles[:-1], True), (roles, False)]
    return orders


def _texts(template: ChatTemplate, thinking: bool | None, *, system: bool) -> dict[str, str]:
    """Returns the segments of conversations with, or without, a system message."""
    texts: dict[str, str] = {}
    for roles, generate in _role_orders(system):
        markers = [f"\ue000{i}\ue001" for i in range(len(roles))]
        rest = template.render(list(zip(roles, markers)), generate=generate, thinking=thinking)
        found: dict[str, str] = {}
        for index, (name, marker) in enumerate(zip(segment_names(roles, generate), [*markers, None])):
            text, seen, rest = rest.partition(marker) if marker else (rest, "", "")
            if marker and (not seen or marker in rest):
                raise BadValue(
                    f"the chat template does not write message {index + 1} of {', '.join(roles)} once and in its "
                    "place; expected contents in their order, each once",
                    key="message",
                    value=index + 1,
                )
            _check_equal(found, {name: text})
            found[name] = text
        _check_equal(texts, found)
        texts |= found
    return texts


def _check_equal(texts: Mapping[str, str], others: Mapping[str, str]) -> None:
    for name, text in others.items():
        if texts.get(name, text) != text:
            raise BadValue(
                f"the chat template writes {texts[name]!r} in one conversation and {text!r} in another as "
                f"{SEGMENTS[name]}; expected the same in every turn",
                key="chat template",
                value=texts[name],
            )


def _probe(kind: str, content: str) -> tuple[list[Message], bool]:
    """Returns a conversation with `content` as its content of a kind, and whether the next response is generated."""
    turn = [("user", "u"), ("assistant", content)]
    return {
        "system": ([("system", content), ("user", "u")], True),
        "first_user": ([("system", "s"), ("user", content)], True),
        "user": ([("user", content), ("assistant", "a"), ("user", content)], True),
        "response_earlier": ([*turn, ("user", "v")], True),
        "response_last": (turn, False),
    }[kind]


def _find_edit(segments: ChatSegments, kind: str) -> Edit:
    """Returns the first edit that reproduces what the template does to outer white space."""
    if kind in ("system", "first_user") and segments.system_refusal:
        return keep
    for edit in _STRIPS:
        tried = dataclasses.replace(segments, edits={**segments.edits, kind: edit})
        if all(_agrees(tried, kind, content) for content in _SPACES):
            return edit
    messages, generate = _probe(kind, _SPACES[0])
    rendered = segments.template.render(messages, generate=generate, thinking=segments.thinking)
    raise BadValue(
        f"the chat template changes {_SPACES[0]!r} as content of the {kind}: {rendered!r}",
        key="chat template",
        value=_SPACES[0],
    )


def _find_thought(segments: ChatSegments, kind: str) -> tuple[str, Edit]:
    """Returns the segment and the edit for a response with a think block; those for other responses if none fit."""
    for before in (kind, "response_earlier", "ask"):
        for edit in _THOUGHT_EDITS:
            tried = dataclasses.replace(segments, thoughts={**segments.thoughts, kind: (before, edit)})
            if all(_agrees(tried, kind, content) for content in (_THOUGHT, _THOUGHT + "\n ")):
                return before, edit
    return kind, keep


def _agrees(segments: ChatSegments, kind: str, content: str) -> bool:
    messages, generate = _probe(kind, content)
    try:
        segments.pieces(messages, generate=generate)
    except ValueError:
        return False
    return True
