"""Conversations as token ids on the host, to chat with a policy. Ids are only appended, so its cache stays valid."""

from collections.abc import Sequence

from agentrl_jax.text.chat import Chat, chat_format
from agentrl_jax.text.chat_segments import check_roles
from agentrl_jax.text.chat_template import Message
from agentrl_jax.text.pieces import Piece, encode_pieces
from agentrl_jax.text.tokenizer import Tokenizer


def conversation_ids(tokenizer: Tokenizer, messages: Sequence[Message], *, thinking: bool | None = None) -> list[int]:
    """Returns a conversation as token ids; each segment and each content is encoded separately.

    A last user message is followed by the header of the next response, so that the policy can continue from there; a
    last assistant message by nothing, as if the response had ended by itself. `thinking` as in `chat.chat_format`.

    Raises:
        ValueError: the roles are out of order, or the tokenizer has no format for conversations.
    """
    return encode_pieces(tokenizer, conversation_pieces(chat_format(tokenizer, thinking), messages))


def following_ids(
    tokenizer: Tokenizer, content: str, *, response_ended: bool, thinking: bool | None = None
) -> list[int]:
    """Returns the ids between two sampled responses: the end of the first, the user's message and the next header.

    The ids so far, the sampled ids and these form the longer conversation. If the sampled tokens are those that the
    response's text is encoded to, `conversation_ids` gives the same ids. `response_ended` says that the response's last
    token is one of `tokenizer.stop_ids`; otherwise the end-of-turn token is inserted.

    Raises:
        ValueError: the tokenizer has no format for conversations.
    """
    chat = chat_format(tokenizer, thinking)
    end = () if response_ended else chat.response_end
    return encode_pieces(tokenizer, (*end, *chat.after_end, *chat.user_header, *_question(chat, content, "user")))


def conversation_pieces(chat: Chat, messages: Sequence[Message]) -> tuple[Piece, ...]:
    """Returns the pieces whose ids `conversation_ids` returns; ValueError if the roles are out of order."""
    check_roles([role for role, _ in messages])
    pieces: list[Piece] = []
    header, kind = chat.open_user, "user"
    for role, content in messages:
        if role == "system":
            pieces += chat.system(chat.edits["system"](content))
            header, kind = chat.first_user_header, "first_user"
        elif role == "user":
            pieces += (*header, *_question(chat, content, kind))
            header, kind = (*chat.after_end, *chat.user_header), "user"
        else:
            pieces += (*chat.response_lead, chat.edits["response_earlier"](content), *chat.response_end)
    return tuple(pieces)


def _question(chat: Chat, content: str, kind: str) -> tuple[Piece, ...]:
    return (chat.edits[kind](content), *chat.user_end, *chat.response_header)
