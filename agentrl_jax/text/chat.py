"""How a conversation is marked as it grows, message by message, in pieces.

A conversation only ever gets longer: what was sampled stays as it was sampled, and what was inserted stays too, so that
a policy is trained on what it has read and its cache stays good. Where a chat template would write the past anew (it
drops the think blocks of earlier responses, say), `differences` tells so.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from agentrl_jax.text.chat_segments import CONTENTS, ChatSegments, derive
from agentrl_jax.text.pieces import Piece, Special
from agentrl_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Chat:
    """What stands around the contents of a conversation. A "header" opens a message, as far as its content.

    Attributes:
        open_system: opens a conversation with a system message; None where there is none, so that its words open the
            first user message.
        system_end: ends the system message.
        first_user: header of the user message right after a system message.
        open_user: opens a conversation without a system message, header of the first user message included.
        user: header of a user message after a response.
        user_end: ends a user message.
        response: header of a response as the policy finds it, such as an empty think block after its name.
        response_lead: stands between that and a response that was written, not sampled.
        unended: ends a response that did not end by itself; its last piece is `end`.
        end: name of the token by which a response ends itself.
        after_end: stands after it, before the next header.
        headers_suffice: a message of the system or the user may go without its end, where the next header begins.
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
            text: its content.
            brief: leave out the end of the message where headers suffice.
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
            ValueError: the header opens a think block by itself, and the response's format does not start inside one.
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
    """Returns how conversations are marked: by the tokenizer's template, else judged by its special tokens.

    Args:
        tokenizer: the tokenizer.
        thinking: whether a template that can do both (`enable_thinking`) asks for a think block; None leaves it to the
            template.

    Raises:
        ValueError: there is no template and no special tokens for a conversation, or segments cannot express it.
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
        ValueError: there is no template, or segments cannot express it.
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
    """Returns in words what a growing conversation has otherwise than the tokenizer's template; errors as `segments`.

    Empty where both are the same for every conversation, but for what is spelled like a special token in a content.
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
    """A format in which all messages end alike; headers are those of system, user and assistant."""
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
    # Where to part what ends a response from the next header only matters for telling that headers are alike.
    tail = texts["response_end"] if texts["next_user"].startswith(texts["response_end"]) else spelled
    user = texts["next_user"].removeprefix(tail)
    after_system = texts.get("after_system", "")
    alike = user != "" and after_system.endswith(user)
    user_end = texts["user_end"] if texts["ask"].startswith(texts["user_end"]) else ""
    # A template may put a space between the header and a response that it expects the policy to sample.
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
