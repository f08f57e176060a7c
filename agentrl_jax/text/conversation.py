"""Conversations as token ids on the host, to chat with a policy. Ids are only appended, so its cache stays valid."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from agentrl_jax.text.chat import Chat, chat_format
from agentrl_jax.text.chat_segments import check_roles
from agentrl_jax.text.chat_template import Message
from agentrl_jax.text.edits import CUTS
from agentrl_jax.text.pieces import Piece, Special
from agentrl_jax.text.tokenizer import Tokenizer


def conversation_ids(tokenizer: Tokenizer, messages: Sequence[Message], *, thinking: bool | None = None) -> list[int]:
    """Returns a conversation as token ids; each segment and each content is encoded separately.

    A last user message is followed by the header of the next response, so that the policy can continue from there; a
    last assistant message by nothing, as if the response had ended by itself.

    Args:
        tokenizer: the tokenizer.
        messages: pairs (role, content): an optional system message, then user and assistant alternately.
        thinking: as `chat.chat_format` takes it.

    Raises:
        ValueError: the roles are out of order, or the tokenizer has no format for conversations.
    """
    return encode_pieces(tokenizer, conversation_pieces(chat_format(tokenizer, thinking), messages))


def following_ids(
    tokenizer: Tokenizer, content: str, *, response_ended: bool, thinking: bool | None = None
) -> list[int]:
    """Returns the ids between two sampled responses: the end of the first, the user's message and the next header.

    The ids so far, the sampled ids and these form the longer conversation. If the sampled tokens are those that the
    response's text is encoded to, `conversation_ids` gives the same ids.

    Args:
        tokenizer: the tokenizer.
        content: the user's next message.
        response_ended: the response's last token is one of `tokenizer.stop_ids`; otherwise the end-of-turn token is
            inserted.
        thinking: as for the ids so far.

    Raises:
        ValueError: the tokenizer has no format for conversations.
    """
    chat = chat_format(tokenizer, thinking)
    closing = () if response_ended else chat.unended
    return encode_pieces(tokenizer, (*closing, *chat.after_end, *chat.user, *_asked(chat, content, "user")))


def conversation_pieces(chat: Chat, messages: Sequence[Message]) -> tuple[Piece, ...]:
    """Returns the pieces whose ids `conversation_ids` returns.

    Raises:
        ValueError: the roles are out of order.
    """
    check_roles([role for role, _ in messages])
    pieces: list[Piece] = []
    before, kind = chat.open_user, "user"
    for role, content in messages:
        if role == "system":
            pieces += chat.system(CUTS[chat.cuts["system"]](content))
            before, kind = chat.first_user, "first_user"
        elif role == "user":
            pieces += (*before, *_asked(chat, content, kind))
            before, kind = (*chat.after_end, *chat.user), "user"
        else:
            pieces += (*chat.response_lead, CUTS[chat.cuts["response_earlier"]](content), *chat.unended)
    return tuple(pieces)


def encode_pieces(tokenizer: Tokenizer, pieces: Iterable[Piece], *, joined: bool = False) -> list[int]:
    """Returns the token ids of pieces.

    Args:
        tokenizer: the tokenizer.
        pieces: special tokens and text.
        joined: encode the text between two special tokens as a whole, as if the whole conversation were tokenized;
            otherwise encode every piece separately.
    """
    if joined:
        runs = itertools.groupby(pieces, lambda piece: isinstance(piece, Special))
        merged = [list(run) if special else ["".join(map(str, run))] for special, run in runs]
        pieces = itertools.chain.from_iterable(merged)
    return [
        token
        for piece in pieces
        for token in ([tokenizer.special_id(piece.name)] if isinstance(piece, Special) else tokenizer.encode(piece))
    ]


def share_equal_to_whole(
    tokenizer: Tokenizer, conversations: Iterable[Sequence[Message]], *, thinking: bool | None = None
) -> float:
    """Returns the share of conversations whose ids by segments equal those of the whole text; 1 if there are none.

    Segments are encoded separately because a policy's tokens must not depend on later text. If the share is below 1,
    some borders are tokenized differently than in the model's own training.

    Args:
        tokenizer: the tokenizer.
        conversations: each as `conversation_ids` takes it.
        thinking: as `chat.chat_format` takes it.
    """
    chat = chat_format(tokenizer, thinking)
    rows = [conversation_pieces(chat, messages) for messages in conversations]
    equal = [encode_pieces(tokenizer, row) == encode_pieces(tokenizer, row, joined=True) for row in rows]
    return float(np.mean(equal)) if equal else 1.0


def _asked(chat: Chat, content: str, kind: str) -> tuple[Piece, ...]:
    return (CUTS[chat.cuts[kind]](content), *chat.user_end, *chat.response)
