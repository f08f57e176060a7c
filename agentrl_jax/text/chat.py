"""Chat format of a conversation that grows message by message, in pieces.

A conversation is append-only: sampled and inserted tokens never change, so the policy is trained on what it has read
and its KV cache stays valid. A chat template may rewrite earlier messages (for example drop the think blocks of earlier
responses); `differences` lists such cases.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from agentrl_jax.text.chat_segments import CONTENTS, ChatSegments, derive
from agentrl_jax.text.pieces import Piece, Special
from agentrl_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Chat:
    """The text around the contents of a conversation. A "header" is the part of a message before its content.

    Attributes:
        open_system: opens a conversation with a system message; None if there is no system role, so that its text is
            put at the start of the first user message.
        system_end: ends the system message.
        first_user: header of the user message right after a system message.
        open_user: opens a conversation without a system message, including the header of the first user message.
        user: header of a user message after a response.
        user_end: ends a user message.
        response: header of a sampled response; may include an empty think block after the role.
        response_lead: follows this header before a response that was given, not sampled.
        unended: ends a response that did not end by itself; its last piece is `end`.
        end: name of the end-of-turn token, which a policy samples to end its response.
        after_end: follows `end`, before the next header.
        headers_suffice: the end of a system or user message may be left out before the next header.
        cuts: by kind of content (`chat_segments.CONTENTS`), the name in `edits.CUTS` of what the template does to it.
    """

    open_system: tuple[Piece, ...] | None
    system_end: tuple[Piece, ...]
    first_user: tuple[Piece, ...]
    open_user: tuple[Piece, ...]
    user: tuple[Piece, ...]
    user_end: tuple[Piece, ...]
    response: tuple[Piece, ...]
    unended: tuple[Piece, ...]
    end: str
    response_lead: tuple[Piece, ...] = ()
    after_end: tuple[Piece, ...] = ()
    headers_suffice: bool = False
    cuts: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict.fromkeys(CONTENTS, "kept"))

    def system(self, text: str, *, brief: bool = False) -> tuple[Piece, ...]:
        """Opens a conversation with a system message; the header of the first user message is next.

        Args:
            text: content of the message.
            brief: leave out the end of the message if `headers_suffice`.
        """
        if self.open_system is None:
            return (*self.open_user, text, "\n\n")
        end = () if brief and self.headers_suffice else self.system_end
        return (*self.open_system, text, *end)

    def opening(self, tag: str, *, forced: bool) -> tuple[Piece, ...]:
        """Returns what is inserted between the header of a response and its first sampled token.

        Args:
            tag: the tag that a response starts with.
            forced: whether it is inserted.

        Raises:
            ValueError: the header opens a think block, but the response format does not start inside one.
        """
        last = self.response[-1] if self.response else ""
        written = last.name if isinstance(last, Special) else last
        if not written.rstrip().endswith("<think>"):
            return (tag,) if forced else ()
        if tag != "<think>" or not forced:
            raise ValueError(
                "the chat template opens a think block in front of every response; expected a response format with a "
                "think block and a forced opening tag (prompt.think and prompt.forced_tag)"
            )
        return ()


def chat_format(tokenizer: Tokenizer, thinking: bool | None = None) -> Chat:
    """Returns the chat format from the tokenizer's template or, without one, from its special tokens.

    Args:
        tokenizer: the tokenizer.
        thinking: value of `enable_thinking` for templates that read it; None for the template's default.

    Raises:
        ValueError: there is neither a template nor special tokens for a conversation, or segments cannot express the
            template.
    """
    if tokenizer.template is not None:
        return _from_segments(segments(tokenizer, thinking))
    end = tokenizer.special_name(tokenizer.end_of_turn_id)
    names = ("system", "user", "assistant")
    if tokenizer.has_special("<|im_start|>"):
        headers: list[tuple[Piece, ...]] = [(Special("<|im_start|>"), name, "\n") for name in names]
        return _by_headers((), headers, end, ("\n",))
    if tokenizer.has_special("<|start_header_id|>"):
        begin, after = Special("<|start_header_id|>"), Special("<|end_header_id|>")
        return _by_headers((Special("<|begin_of_text|>"),), [(begin, name, after, "\n\n") for name in names], end, ())
    if tokenizer.has_special("<|user|>") and tokenizer.has_special("<|system|>"):
        plain = _by_headers((), [(Special(f"<|{name}|>"),) for name in names], end, ())
        return dataclasses.replace(plain, headers_suffice=True)
    raise ValueError(
        "the tokenizer has no special tokens for a conversation; expected a chat template, <|im_start|>, "
        "<|start_header_id|> or <|user|> and <|system|>; use the tokenizer of an instruction-tuned model"
    )


def segments(tokenizer: Tokenizer, thinking: bool | None = None) -> ChatSegments:
    """Returns the segments of the tokenizer's template; `thinking` as in `chat_format`.

    Raises:
        ValueError: there is no template, or segments cannot express the template.
    """
    if tokenizer.template is None:
        raise ValueError("the tokenizer has no chat template; expected one in tokenizer_config.json")
    names = frozenset(tokenizer.special_name(i) for i in tokenizer.special_ids)
    written = (tokenizer.template.source, *dict(tokenizer.template.variables).values())
    greedy = [
        token.content
        for token in tokenizer.backend.get_added_tokens_decoder().values()
        if token.special and (token.lstrip or token.rstrip) and any(token.content in text for text in written)
    ]
    if greedy:
        raise ValueError(
            f"the special token {greedy[0]} takes in the white space beside it, so that tokens depend on what stands "
            "next to them; expected special tokens with lstrip and rstrip false"
        )
    return derive(tokenizer.template, names, thinking)


def differences(tokenizer: Tokenizer, thinking: bool | None = None) -> tuple[str, ...]:
    """Describes how a growing conversation differs from the tokenizer's template; errors as in `segments`.

    Empty if both agree for every conversation, except for contents that spell a special token.
    """
    found = segments(tokenizer, thinking)
    texts, told = found.texts, []
    if found.system_refusal:
        told.append(f"system: the words of a system message open the first user message ({found.system_refusal})")
    if found.template.asks_for_date:
        told.append(f"date: the template is told that today is {found.template.date.isoformat()}")
    if any(found.cuts[kind] != "kept" for kind in ("system", "first_user", "user")):
        told.append("white space: the template cuts it around contents; an environment's text keeps it")
    if not texts["response_earlier"].startswith(texts["ask"]):
        told.append(
            f"earlier responses: the template asks for a response by {texts['ask']!r} and later tells it after "
            f"{texts['response_earlier']!r}; a conversation that goes on keeps the former"
        )
    if found.cuts["response_earlier"] != "kept":
        told.append("white space of responses: the template cuts it; what was sampled stays")
    if found.thoughts["response_earlier"][1].startswith("dropped"):
        told.append("think blocks: the template drops those of earlier responses; what was sampled stays")
    ending = _from_segments(found).unended
    if len(ending) > 1:
        told.append(
            f"ends of responses: the template writes {ending[0]!r} before the token that a response ends itself by"
        )
    return tuple(told)


def _by_headers(
    begin: tuple[Piece, ...], headers: Sequence[tuple[Piece, ...]], end: str, after_end: tuple[Piece, ...]
) -> Chat:
    """A format in which all messages have the same end; `headers` are those of system, user and assistant."""
    system, user, response = headers
    close = (Special(end), *after_end)
    return Chat(
        open_system=(*begin, *system),
        system_end=close,
        first_user=user,
        open_user=(*begin, *user),
        user=user,
        user_end=close,
        response=response,
        unended=(Special(end),),
        end=end,
        after_end=after_end,
    )


def _from_segments(found: ChatSegments) -> Chat:
    texts = found.texts
    ending = found.split(texts["response_end"])
    count = next((i + 1 for i, piece in enumerate(ending) if isinstance(piece, Special)), 0)
    unended, last = ending[:count], ending[count - 1] if count else None
    spelled = "".join(piece.name if isinstance(piece, Special) else piece for piece in unended)
    if not isinstance(last, Special) or not texts["next_user"].startswith(spelled):
        raise ValueError(
            f"the chat template writes {texts['response_end']!r} after the last response and {texts['next_user']!r} "
            "after an earlier one; expected both to begin with one special token that ends a response"
        )
    # The split between the end of a response and the next header only matters for comparing headers.
    tail = texts["response_end"] if texts["next_user"].startswith(texts["response_end"]) else spelled
    user = texts["next_user"].removeprefix(tail)
    after_system = texts.get("after_system", "")
    alike = user != "" and after_system.endswith(user)
    user_end = texts["user_end"] if texts["ask"].startswith(texts["user_end"]) else ""
    # A template may write a space after the header that it expects the policy to sample.
    written = texts["response_earlier"]
    lead = written.removeprefix(texts["ask"]) if written.startswith(texts["ask"]) else ""
    return Chat(
        open_system=None if found.system_refusal else found.split(texts["open_system"]),
        system_end=found.split(after_system.removesuffix(user) if alike else after_system),
        first_user=found.split(user) if alike else (),
        open_user=found.split(texts["open_user"]),
        user=found.split(user),
        user_end=found.split(user_end),
        response=found.split(texts["ask"].removeprefix(user_end)),
        response_lead=found.split(lead),
        unended=unended,
        end=last.name,
        after_end=found.split(tail.removeprefix(spelled)),
        cuts=found.cuts,
    )
