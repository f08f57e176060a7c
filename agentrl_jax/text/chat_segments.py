"""Derives the segments of a conversation from a chat template: the text between one content and the next.

The template is rendered on conversations whose contents are markers. The text between two markers is a segment. It may
depend only on the roles before and after it and on whether the conversation ends there. Other templates are refused,
with the first difference in the error message. Runs on the host.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

from agentrl_jax.text.chat_template import ChatTemplate, Message, special_pattern
from agentrl_jax.text.edits import CUTS, THOUGHT_CUTS, holds_thought
from agentrl_jax.text.pieces import Piece, Special

SEGMENTS = {
    "open_system": "what opens a conversation with a system message",
    "after_system": "what stands between the system message and the first user message",
    "open_user": "what opens a conversation without a system message",
    "ask": "what follows a user message when the next response is generated",
    "user_end": "what follows the last message of a conversation if it is the user's",
    "response_earlier": "what stands before a response that a user message follows",
    "response_last": "what stands before the last response",
    "next_user": "what stands between a response and the next user message",
    "response_end": "what follows the last message of a conversation if it is a response",
}
"""The segments by name. The first two are missing if a template takes no system message."""

RESPONSES = ("response_earlier", "response_last")

CONTENTS = ("system", "first_user", "user", *RESPONSES)
"""The kinds of content that a template may treat in different ways; "first_user" follows a system message."""

TURNS = 4
"""Turns of the longest conversation that a template is tested on."""

_SPACES = ("\n\n \tplain\nwords \t\n\n", "\n\nplain\n\n", "  plain  ")
_THOUGHT = "<think>\nplan\n</think>\n\nThe answer."
_TRIALS = ("Hello.", "<answer>Up || Down</answer>", *_SPACES, "two\nlines\n\nand √ 你", "  {{ x }} {% y %} '\"\\")


@dataclasses.dataclass(frozen=True)
class ChatSegments:
    """The text that a chat template writes around contents, and how it changes contents.

    Attributes:
        template: the template.
        thinking: value of `enable_thinking` passed to the template.
        special_names: the tokenizer's special tokens.
        texts: the segments by their names in `SEGMENTS`.
        cuts: by kind of content, the name in `edits.CUTS` of what the template does to it.
        thoughts: by kind of response, for one with a think block: (the segment before it, name in
            `edits.THOUGHT_CUTS`).
        system_refusal: why system messages are refused; empty if they are allowed.
    """

    template: ChatTemplate
    thinking: bool | None
    special_names: frozenset[str]
    texts: Mapping[str, str]
    cuts: Mapping[str, str]
    thoughts: Mapping[str, tuple[str, str]]
    system_refusal: str

    def split(self, text: str) -> tuple[Piece, ...]:
        """Splits the text of a segment into pieces: special tokens, and the text between them."""
        return tuple(split_specials(text, self.special_names))

    def pieces(self, messages: Sequence[Message], *, generate: bool) -> tuple[Piece, ...]:
        """Returns a conversation exactly as the template writes it, segment by segment and content by content.

        Contents are text pieces: text in them that spells a special token stays text.

        Args:
            messages: the conversation, see `check_roles`.
            generate: whether it ends with the header of the next response; only after a user message.

        Raises:
            ValueError: the roles are out of order, or the template writes this conversation differently.
        """
        pieces: list[Piece] = []
        written = ""
        for is_content, text in self._parts(messages, generate):
            pieces.extend([text] if is_content else self.split(text))
            written += text
        rendered = self.template.render(messages, generate=generate, thinking=self.thinking)
        if rendered != written:
            raise ValueError(f"the chat template changes this conversation: {difference(rendered, written)}")
        return tuple(piece for piece in pieces if piece)

    def _parts(self, messages: Sequence[Message], generate: bool) -> Iterator[tuple[bool, str]]:
        """Yields (is it a content, text) in order."""
        roles = [role for role, _ in messages]
        check_roles(roles)
        names = segment_names(roles, generate)
        missing = [name for name in names if name not in self.texts]
        if missing:
            raise ValueError(f"no system message with this chat template: {self.system_refusal}")
        for name, (role, content) in zip(names, messages):
            kind = name if role == "assistant" else "first_user" if name == "after_system" else role
            if role == "assistant" and holds_thought(content):
                name, cut = self.thoughts[kind]
                content = THOUGHT_CUTS[cut](content)
            else:
                content = CUTS[self.cuts[kind]](content)
            yield False, self.texts[name]
            yield True, content
        yield False, self.texts[names[len(messages)]]


def check_roles(roles: Sequence[str]) -> None:
    """Checks the order of the roles: an optional system message, then user and assistant alternately.

    Raises:
        ValueError: the order is different, or there is no user message.
    """
    spoken = list(roles[1:] if roles and roles[0] == "system" else roles)
    if not spoken or spoken != [("user", "assistant")[i % 2] for i in range(len(spoken))]:
        raise ValueError(
            f"a conversation of {', '.join(roles) or 'nothing'}; expected at most one system message, then user and "
            "assistant in turn, the user first"
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
    """Derives the segments of a template.

    Args:
        template: the template.
        special_names: the tokenizer's special tokens.
        thinking: value of `enable_thinking`; None for the template's default.

    Raises:
        ValueError: the template cannot be expressed by segments; the message says where.
    """
    texts = _texts(template, thinking, system=False)
    refusal = ""
    try:
        with_system = _texts(template, thinking, system=True)
        _agree(texts, with_system)
    except ValueError as error:
        refusal = str(error)
    else:
        texts = with_system | texts
    plain = ChatSegments(
        template=template,
        thinking=thinking,
        special_names=special_names,
        texts=texts,
        cuts=dict.fromkeys(CONTENTS, "kept"),
        thoughts={kind: (kind, "kept") for kind in RESPONSES},
        system_refusal=refusal,
    )
    segments = dataclasses.replace(plain, cuts={kind: _find_cut(plain, kind) for kind in CONTENTS})
    segments = dataclasses.replace(segments, thoughts={kind: _find_thought(segments, kind) for kind in RESPONSES})
    for number, (roles, generate) in enumerate(_shapes(system=False) + ([] if refusal else _shapes(system=True))):
        trials = [_TRIALS[(number + index) % len(_TRIALS)] for index, _ in enumerate(roles)]
        segments.pieces(list(zip(roles, trials)), generate=generate)
    return segments


def split_specials(text: str, special_names: frozenset[str]) -> Iterator[Piece]:
    """Yields the special tokens spelled in a text, and the text between them."""
    begin = 0
    for match in special_pattern(special_names).finditer(text):
        if match.start() > begin:
            yield text[begin : match.start()]
        yield Special(match[0])
        begin = match.end()
    if begin < len(text):
        yield text[begin:]


def difference(rendered: str, written: str) -> str:
    """Describes where the text of the template and that of the segments first differ."""
    pairs = enumerate(zip(rendered, written))
    at = next((i for i, (a, b) in pairs if a != b), min(len(rendered), len(written)))
    near = slice(max(at - 20, 0), at + 20)
    return f"it writes {rendered[near]!r} where its segments give {written[near]!r}"


def _shapes(system: bool) -> list[tuple[tuple[str, ...], bool]]:
    """Conversations as (roles, generate), up to `TURNS` turns, ending in a user message, a header or a response."""
    shapes = []
    for turns in range(1, TURNS + 1):
        roles = ("system",) * system + ("user", "assistant") * turns
        shapes += [(roles[:-1], False), (roles[:-1], True), (roles, False)]
    return shapes


def _texts(template: ChatTemplate, thinking: bool | None, *, system: bool) -> dict[str, str]:
    """The segments of conversations with, or without, a system message."""
    texts: dict[str, str] = {}
    for roles, generate in _shapes(system):
        markers = [f"\ue000{i}\ue001" for i in range(len(roles))]
        rest = template.render(list(zip(roles, markers)), generate=generate, thinking=thinking)
        found: dict[str, str] = {}
        for index, (name, marker) in enumerate(zip(segment_names(roles, generate), [*markers, None])):
            if marker is None:
                text = rest
            else:
                text, seen, rest = rest.partition(marker)
                if not seen or marker in rest:
                    raise ValueError(
                        f"the chat template does not write message {index + 1} of {', '.join(roles)} once and in its "
                        "place; expected contents in their order, each once"
                    )
            _agree(found, {name: text})
            found[name] = text
        _agree(texts, found)
        texts |= found
    return texts


def _agree(texts: Mapping[str, str], others: Mapping[str, str]) -> None:
    for name, text in others.items():
        if texts.get(name, text) != text:
            raise ValueError(
                f"the chat template writes {texts[name]!r} in one conversation and {text!r} in another as "
                f"{SEGMENTS[name]}; expected the same in every turn"
            )


def _probe(kind: str, content: str) -> tuple[list[Message], bool]:
    """A conversation with `content` as its content of a kind, and whether the next response is generated."""
    if kind == "system":
        return [("system", content), ("user", "u")], True
    if kind == "first_user":
        return [("system", "s"), ("user", content)], True
    if kind == "user":
        return [("user", content), ("assistant", "a"), ("user", content)], True
    turn = [("user", "u"), ("assistant", content)]
    return (turn, False) if kind == "response_last" else ([*turn, ("user", "v")], True)


def _find_cut(segments: ChatSegments, kind: str) -> str:
    """Name of the first cut that reproduces what the template does to outer white space."""
    if kind in ("system", "first_user") and segments.system_refusal:
        return "kept"
    for name in CUTS:
        tried = dataclasses.replace(segments, cuts={**segments.cuts, kind: name})
        if all(_holds(tried, kind, content) for content in _SPACES):
            return name
    messages, generate = _probe(kind, _SPACES[0])
    rendered = segments.template.render(messages, generate=generate, thinking=segments.thinking)
    raise ValueError(f"the chat template changes {_SPACES[0]!r} as content of the {kind}: {rendered!r}")


def _find_thought(segments: ChatSegments, kind: str) -> tuple[str, str]:
    """Segment and cut that reproduce a response with a think block; those for an unchanged one if none do."""
    for before in (kind, "response_earlier"):
        for name in THOUGHT_CUTS:
            tried = dataclasses.replace(segments, thoughts={**segments.thoughts, kind: (before, name)})
            if all(_holds(tried, kind, content) for content in (_THOUGHT, _THOUGHT + "\n ")):
                return before, name
    return kind, "kept"


def _holds(segments: ChatSegments, kind: str, content: str) -> bool:
    try:
        messages, generate = _probe(kind, content)
        segments.pieces(messages, generate=generate)
    except ValueError:
        return False
    return True
