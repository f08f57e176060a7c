"""Chat format of a conversation that grows message by message, in pieces.

A conversation is append-only: sampled and inserted tokens never change, so the policy is trained on what it has read
and its KV cache stays valid. A chat template may rewrite earlier messages (for example drop the think blocks of earlier
responses); such changes are not followed.
"""

import dataclasses
from collections.abc import Callable, Mapping

from agentrl_jax.errors import BadValue
from agentrl_jax.text.chat_segments import CONTENTS, ChatSegments, derive, keep
from agentrl_jax.text.pieces import Piece, Special, spelled
from agentrl_jax.text.tokenizer import Tokenizer

Pieces = tuple[Piece, ...]


@dataclasses.dataclass(frozen=True)
class Chat:
    """The text around the contents of a conversation. A "header" is the part of a message before its content.

    Attributes:
        open_system: opens a conversation with a system message; None if there is no system role, so that its text is
            put at the start of the first user message.
        first_user_header: header of the user message right after a system message.
        open_user: opens a conversation without a system message, including the header of the first user message.
        response_header: header of a sampled response; may include an empty think block after the role.
        response_end: ends a response that did not end by itself; its last piece is `end_of_turn`.
        end_of_turn: name of the token that a policy samples to end its response.
        response_lead: follows `response_header` before a response that was given, not sampled.
        earlier_header: the template's header of earlier responses; None if it begins with that of the next one.
        after_end: follows `end_of_turn`, before the next header.
        ends_optional: the end of a system or user message may be left out before the next header.
        edits: what the template does to each kind of content (`chat_segments.CONTENTS`).
    """

    open_system: Pieces | None
    system_end: Pieces
    first_user_header: Pieces
    open_user: Pieces
    user_header: Pieces
    user_end: Pieces
    response_header: Pieces
    response_end: Pieces
    end_of_turn: str
    response_lead: Pieces = ()
    earlier_header: Pieces | None = None
    after_end: Pieces = ()
    ends_optional: bool = False
    edits: Mapping[str, Callable[[str], str]] = dataclasses.field(default_factory=lambda: dict.fromkeys(CONTENTS, keep))

    def system(self, text: str, *, omit_end: bool = False) -> Pieces:
        """Opens a conversation with a system message, without its end if `omit_end` and the end is optional.

        The header of the first user message is next.
        """
        if self.open_system is None:
            return (*self.open_user, text, "\n\n")
        end = () if omit_end and self.ends_optional else self.system_end
        return (*self.open_system, text, *end)

    @property
    def opens_thought(self) -> bool:
        """Whether the header of a sampled response opens a think block, which the response has to close."""
        return self.opens("<think>")

    def opens(self, text: str) -> bool:
        """Whether the header of a sampled response ends with `text`, so that the response starts behind it."""
        return spelled(self.response_header[-1:]).rstrip().endswith(text)

    def given_header(self, text: str) -> Pieces:
        """Returns the header of a response that is given as `text`, not sampled.

        It is that of a sampled one, unless it would open a think block that the text does not close, or write one where
        the text brings its own.
        """
        thought, closed, _ = text.partition("</think>")
        has_block = bool(closed) and "<think>" in thought
        # What the template writes before a response may close a block too, for which the text has no use then.
        lead = () if closed and "</think>" in spelled(self.response_lead) else self.response_lead
        header = (*self.response_header, *lead)
        has_two = has_block and "<think>" in spelled(header)
        if self.earlier_header is not None and (has_two or (self.opens_thought and not closed)):
            header = self.earlier_header
        return _before_thought(header) if has_block else header

    def opening(self, tag: str, *, forced: bool) -> Pieces:
        """Returns what is inserted between the header of a response and its first sampled token: `tag` if `forced`.

        Nothing is inserted behind a header that ends with it.

        Raises:
            ValueError: the header opens a block, but the response format does not start inside of it.
        """
        for block, named in (("<think>", "a think block"), ("<answer>", "an answer block")):
            if self.opens(block) and not (forced and tag == block):
                raise BadValue(
                    f"the chat template opens {named} in front of every response; expected a response format that "
                    "starts in it, and a forced opening tag (prompt.think and prompt.forced_tag)",
                    key="prompt.think",
                )
        return (tag,) if forced and not self.opens(tag) else ()


def _before_thought(pieces: Pieces) -> Pieces:
    """The pieces before a think block; all where there is none."""
    for index, piece in enumerate(pieces):
        before, opened, _ = spelled((piece,)).partition("<think>")
        if opened:
            return (*pieces[:index], before) if before else pieces[:index]
    return pieces


def chat_format(tokenizer: Tokenizer, thinking: bool | None = None) -> Chat:
    """Returns the chat format from the tokenizer's template or, without one, from its special tokens.

    `thinking` is the value of `enable_thinking` for templates that read it; None for the template's default.

    Raises:
        ValueError: there is neither a template nor special tokens for a conversation, or segments cannot express the
            template.
    """
    if tokenizer.template is not None:
        return _from_segments(segments(tokenizer, thinking))
    names = ("system", "user", "assistant")
    begin: Pieces = ()
    after_end: Pieces = ()
    ends_optional = False
    if tokenizer.has_special("<|im_start|>"):
        headers: list[Pieces] = [(Special("<|im_start|>"), name, "\n") for name in names]
        after_end = ("\n",)
    elif tokenizer.has_special("<|start_header_id|>"):
        begin = (Special("<|begin_of_text|>"),)
        headers = [(Special("<|start_header_id|>"), name, Special("<|end_header_id|>"), "\n\n") for name in names]
    elif tokenizer.has_special("<|user|>") and tokenizer.has_special("<|system|>"):
        headers = [(Special(f"<|{name}|>"),) for name in names]
        ends_optional = True
    else:
        raise BadValue(
            "the tokenizer has no special tokens for a conversation; expected a chat template, <|im_start|>, "
            "<|start_header_id|> or <|user|> and <|system|>; use the tokenizer of an instruction-tuned model",
            key="special tokens",
        )
    system, user, response = headers
    end = tokenizer.special_name(tokenizer.end_of_turn_id)
    return Chat(
        open_system=(*begin, *system),
        system_end=(Special(end), *after_end),
        first_user_header=user,
        open_user=(*begin, *user),
        user_header=user,
        user_end=(Special(end), *after_end),
        response_header=response,
        response_end=(Special(end),),
        end_of_turn=end,
        after_end=after_end,
        ends_optional=ends_optional,
    )


def segments(tokenizer: Tokenizer, thinking: bool | None = None) -> ChatSegments:
    """Returns the segments of the tokenizer's template; `thinking` as in `chat_format`.

    Raises:
        ValueError: there is no template, or segments cannot express the template.
    """
    if tokenizer.template is None:
        raise BadValue("the tokenizer has no chat template; expected one in tokenizer_config.json", key="chat template")
    names = frozenset(tokenizer.special_name(i) for i in tokenizer.special_ids)
    written = (tokenizer.template.source, *dict(tokenizer.template.variables).values())
    for token in tokenizer.backend.get_added_tokens_decoder().values():
        absorbs_space = token.special and (token.lstrip or token.rstrip)
        if absorbs_space and any(token.content in text for text in written):
            raise BadValue(
                f"the special token {token.content} absorbs the white space around it, so that tokens depend on the "
                "text next to them; expected special tokens with lstrip and rstrip false",
                key="special token",
                value=token.content,
            )
    return derive(tokenizer.template, names, thinking)


def _from_segments(found: ChatSegments) -> Chat:
    texts = found.texts
    ending = found.split(texts["response_end"])
    count = next((i + 1 for i, piece in enumerate(ending) if isinstance(piece, Special)), 0)
    response_end, last = ending[:count], ending[count - 1] if count else None
    end_text = spelled(response_end)
    if not isinstance(last, Special) or not texts["next_user"].startswith(end_text):
        raise BadValue(
            f"the chat template writes {texts['response_end']!r} after the last response and {texts['next_user']!r} "
            "after an earlier one; expected both to begin with one special token that ends a response",
            key="chat template",
            value=texts["response_end"],
        )
    # The split between the end of a response and the next header only matters for comparing headers.
    tail = texts["response_end"] if texts["next_user"].startswith(texts["response_end"]) else end_text
    user = texts["next_user"].removeprefix(tail)
    after_system = texts.get("after_system", "")
    same_header = user != "" and after_system.endswith(user)
    user_end = texts["user_end"] if texts["ask"].startswith(texts["user_end"]) else ""
    # A template may write a space after the header that it expects the policy to sample.
    earlier = texts["response_earlier"]
    lead = earlier.removeprefix(texts["ask"]) if earlier.startswith(texts["ask"]) else ""
    return Chat(
        open_system=None if found.system_refusal else found.split(texts["open_system"]),
        system_end=found.split(after_system.removesuffix(user) if same_header else after_system),
        first_user_header=found.split(user) if same_header else (),
        open_user=found.split(texts["open_user"]),
        user_header=found.split(user),
        user_end=found.split(user_end),
        response_header=found.split(texts["ask"].removeprefix(user_end)),
        response_lead=found.split(lead),
        earlier_header=_earlier_header(found, user_end),
        response_end=response_end,
        end_of_turn=last.name,
        after_end=found.split(tail.removeprefix(end_text)),
        edits=found.edits,
    )


def _earlier_header(found: ChatSegments, user_end: str) -> Pieces | None:
    """The header of earlier responses, where it differs from that of the next one; None if it does not."""
    earlier, ask = found.texts["response_earlier"], found.texts["ask"]
    if earlier.startswith(ask) or not earlier.startswith(user_end):
        return None
    return found.split(earlier.removeprefix(user_end))
