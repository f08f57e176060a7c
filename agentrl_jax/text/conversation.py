"""Conversations as token ids on the host, to chat with a policy. Ids are only appended, so its cache stays valid."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agentrl_jax.text.chat import Chat, chat_format
from agentrl_jax.text.chat_segments import check_roles
from agentrl_jax.text.chat_template import Message
from agentrl_jax.text.pieces import Piece, encode_pieces
from agentrl_jax.text.tokenizer import Tokenizer


class SampledResponse(NamedTuple):
    """An earlier response as it was sampled, to be read again token by token instead of as text."""

    ids: tuple[int, ...]
    """With the stop token, if it was sampled."""
    ended: bool
    """Whether the last id is one of `tokenizer.stop_ids`."""


Turn = tuple[str, str | SampledResponse]
"""Role and content of a message; only a response can be a `SampledResponse`."""


def conversation_ids(tokenizer: Tokenizer, messages: Sequence[Message], *, thinking: bool | None = None) -> list[int]:
    """Returns a conversation as token ids; each segment and each content is encoded separately.

    A last user message is followed by the header of the next response, so that the policy can continue from there; a
    last assistant message by nothing, as if the response had ended by itself. `thinking` as in `chat.chat_format`.

    Raises:
        ValueError: the roles are out of order, or the tokenizer has no format for conversations.
    """
    return turn_ids(tokenizer, chat_format(tokenizer, thinking), messages)


def turn_ids(tokenizer: Tokenizer, chat: Chat, turns: Sequence[Turn], *, opening: str = "") -> list[int]:
    """Returns the ids of a conversation, as `conversation_ids` does, whose responses may be given as sampled.

    `opening` is the text that is inserted before every sampled response, such as `<answer>`: after the last header, and
    in front of a `SampledResponse`. A response that is given as text should include it.

    Raises:
        ValueError: the roles are out of order.
    """
    ids: list[int] = []
    for part in conversation_pieces(chat, turns, opening=opening):
        ids += part.ids if isinstance(part, SampledResponse) else encode_pieces(tokenizer, (part,))
    return ids


def following_ids(
    tokenizer: Tokenizer, content: str, *, response_ended: bool, thinking: bool | None = None
) -> list[int]:
    """Returns the ids between two sampled responses: the end of the first, the user's message and the next header.

    The ids so far, the sampled ids and these form the longer conversation. If the sampled tokens are those that the
    response's text is encoded to, it closes the think block that its header may open, and the template writes nothing
    in front of it (such as an empty think block), `conversation_ids` gives the same ids. `response_ended` says that the
    response's last token is one of `tokenizer.stop_ids`; otherwise the end-of-turn token is inserted.

    Raises:
        ValueError: the tokenizer has no format for conversations.
    """
    chat = chat_format(tokenizer, thinking)
    end = () if response_ended else chat.response_end
    question = (chat.edits["user"](content), *chat.user_end, *chat.response_header)
    return encode_pieces(tokenizer, (*end, *chat.after_end, *chat.user_header, *question))


def conversation_pieces(chat: Chat, turns: Sequence[Turn], *, opening: str = "") -> tuple[Piece | SampledResponse, ...]:
    """Returns the pieces whose ids `turn_ids` returns; ValueError if the roles are out of order."""
    check_roles([role for role, _ in turns])
    inserted = (opening,) if opening else ()
    pieces: list[Piece | SampledResponse] = []
    header, kind = chat.open_user, "user"
    for index, (role, content) in enumerate(turns):
        if isinstance(content, SampledResponse):
            pieces += (*inserted, content, *(() if content.ended else chat.response_end))
        elif role == "system":
            pieces += chat.system(chat.edits["system"](content))
            header, kind = chat.first_user_header, "first_user"
        elif role == "user":
            pieces += (*header, chat.edits[kind](content), *chat.user_end)
            following = turns[index + 1][1] if index + 1 < len(turns) else None
            pieces += chat.given_header(following) if isinstance(following, str) else chat.response_header
            pieces += inserted if following is None else ()
            header, kind = (*chat.after_end, *chat.user_header), "user"
        else:
            pieces += _opened(chat.edits["response_earlier"](content), opening)
            pieces += chat.response_end
    return tuple(pieces)


def _opened(text: str, opening: str) -> tuple[str, ...]:
    """A response as text, divided after its opening, as it is where the opening was inserted."""
    return (opening, text.removeprefix(opening)) if opening and text.startswith(opening) else (text,)


def messages_of(tokenizer: Tokenizer, ids: Iterable[int]) -> list[Message]:
    """Returns the messages in token ids of the shipped tokenizer, whose special tokens mark the roles.

    The header of a response that is still to come gives no message.
    """
    found: list[tuple[str, list[int]]] = []
    roles = {f"<|{role}|>": role for role in ("system", "user", "assistant")}
    for token in ids:
        if token not in tokenizer.special_ids:
            found[-1][1].append(token)
        elif role := roles.get(tokenizer.special_name(token)):
            found.append((role, []))
    return [(role, tokenizer.decode(part)) for role, part in found if part or role != "assistant"]
