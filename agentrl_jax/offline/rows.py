"""The rows that a policy learns from in a conversation: token ids, and which of them are trained.

A row has the ids that a rollout would have: every message, header and reply is encoded apart, as sampling does it, so
that no token crosses from one into the next. Trained are the tokens of replies, each with the token that ends it.
Spans are counted while encoding; marks in chat templates are not read.

Shapes: `N` rows of at most `S` tokens, of which up to `K` are trained; `M` tokens of all rows together.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from agentrl_jax.errors import BadValue
from agentrl_jax.learner import bins as binning
from agentrl_jax.learner.supervised import Examples
from agentrl_jax.offline.conversations import Message
from agentrl_jax.text.chat import Chat, Pieces
from agentrl_jax.text.pieces import Special, encode_pieces, spelled
from agentrl_jax.text.tokenizer import Tokenizer

CUT, UNTRAINED, NO_THOUGHT = "cut inside a reply", "nothing to train", "no thought where the template opens one"
"""Why rows are left out."""


class Row(NamedTuple):
    """A row of tokens."""

    ids: list[int]
    trained: list[bool]


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """Rows of different lengths, one after the other."""

    tokens: Int[np.ndarray, " M"]
    trained: Bool[np.ndarray, " M"]
    starts: Int[np.ndarray, " N+1"]
    """The first token of each row; at the end M."""

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "TokenRows":
        """The rows together."""
        ids = np.array([token for row in rows for token in row.ids], np.int32)
        trained = np.array([flag for row in rows for flag in row.trained], bool)
        return cls(ids, trained, np.cumsum([0, *(len(row.ids) for row in rows)]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __add__(self, other: "TokenRows") -> "TokenRows":
        starts = np.concatenate([self.starts, self.starts[-1] + other.starts[1:]])
        tokens = np.concatenate([self.tokens, other.tokens])
        return TokenRows(tokens, np.concatenate([self.trained, other.trained]), starts)

    @property
    def lengths(self) -> Int[np.ndarray, " N"]:
        """Tokens of each row."""
        return np.diff(self.starts)

    @functools.cached_property
    def counts(self) -> Int[np.ndarray, " N"]:
        """Trained tokens of each row."""
        total = np.concatenate([[0], np.cumsum(self.trained)])
        return total[self.starts[1:]] - total[self.starts[:-1]]


@dataclasses.dataclass(frozen=True)
class RowFormat:
    """How conversations become rows.

    Attributes:
        opening: text that is inserted before a sampled reply, such as `<answer>`; empty for none. A reply that begins
            with it is trained behind it.
        turns: user messages of a context, the last one included; 0: all. With a limit, each reply is its own row.
        max_tokens: longest row.
        all_replies: replies are trained whatever their `loss` says.
        omits_ends: messages of system and user have no end, as in prompts of a style that leaves it out.
    """

    tokenizer: Tokenizer
    chat: Chat
    opening: str = ""
    turns: int = 0
    max_tokens: int = 2048
    all_replies: bool = False
    omits_ends: bool = False

    def rows(self, messages: Sequence[Message], dropped: Counter[str]) -> list[Row]:
        """The rows of a conversation; those that cannot be used are counted in `dropped`, by the reason."""
        found = []
        for context in self._contexts(messages):
            row = self._row(context)
            if isinstance(row, str):
                dropped[row] += 1
            else:
                found.append(row)
        return found

    def pair(self, prompt: Sequence[Message], answers: Sequence[Sequence[Message]]) -> list[Row] | str:
        """The rows of several answers to one prompt, whose own replies are not trained; or why one cannot be used."""
        given = [dataclasses.replace(message, loss=False) for message in prompt]
        found = []
        for answer in answers:
            row = self._row([*given, *answer])
            if isinstance(row, str):
                return row
            found.append(row)
        return found

    def _contexts(self, messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
        """The messages of each row: the whole conversation, or before each trained reply the last turns."""
        if not self.turns:
            yield messages
            return
        system = [message for message in messages[:1] if message.role == "system"]
        asked = [index for index, message in enumerate(messages) if message.role == "user"]
        for index, message in enumerate(messages):
            if message.role == "assistant" and (message.loss or self.all_replies):
                first = [number for number in asked if number < index][-self.turns :][0]
                before = [dataclasses.replace(each, loss=False) for each in messages[first:index]]
                yield [*system, *before, message]

    def _row(self, messages: Sequence[Message]) -> Row | str:
        """The row of messages, or why it cannot be used."""
        ids: list[int] = []
        trained: list[bool] = []
        for part, of_reply in self._parts(messages):
            if part is None:
                return NO_THOUGHT
            cut = len(ids) + len(part) > self.max_tokens
            if cut and of_reply:
                return CUT if len(ids) < self.max_tokens else _checked(ids, trained)
            room = self.max_tokens - len(ids)
            ids += part[:room]
            trained += [of_reply] * min(len(part), room)
            if cut:
                break
        return _checked(ids, trained)

    def _parts(self, messages: Sequence[Message]) -> Iterator[tuple[list[int] | None, bool]]:
        """The tokens of a conversation part by part, up to the end of its last reply.

        None for a reply without a thought where the template opens one.
        """
        chat, encode = self.chat, self._encoded
        last = max((index for index, message in enumerate(messages) if message.role == "assistant"), default=-1)
        header, kind = chat.open_user, "user"
        for message in messages[: last + 1]:
            if message.role == "system":
                yield encode(chat.system(chat.edits["system"](message.content), omit_end=self.omits_ends)), False
                header, kind = chat.first_user_header, "first_user"
            elif message.role == "user":
                yield encode(header), False
                yield encode((chat.edits[kind](message.content),)), False
                yield encode(() if self.omits_ends and chat.ends_optional else chat.user_end), False
                header, kind = (*chat.after_end, *chat.user_header), "user"
            else:
                reply = self._reply(message.content)
                if reply is None:
                    yield None, False
                    return
                opening, text = reply
                yield encode((*chat.response_header, *((opening,) if opening else ()))), False
                of_reply = message.loss or self.all_replies
                yield encode((text, Special(chat.end_of_turn))), of_reply

    def _reply(self, text: str) -> tuple[str, str] | None:
        """What is inserted before a reply, and what a policy would have sampled behind it; None if that is nothing.

        Where the header opens a think block, the reply goes on in it; where it writes a whole one, the reply has none.
        """
        chat = self.chat
        text = chat.edits["response_earlier"](text)
        header = spelled(chat.response_header)
        if chat.opens_thought:
            if "</think>" not in text:
                return None
            if text.lstrip().startswith("<think>"):
                text = text.lstrip().removeprefix("<think>")
                text = text.removeprefix("\n") if header.endswith("\n") else text
        elif "</think>" in header and text.lstrip().startswith("<think>") and "</think>" in text:
            text = text.partition("</think>")[2].lstrip("\n")
        if self.opening and text.startswith(self.opening) and not chat.opens(self.opening):
            return self.opening, text.removeprefix(self.opening)
        return "", text

    def _encoded(self, pieces: Pieces) -> list[int]:
        return encode_pieces(self.tokenizer, pieces)


def _checked(ids: list[int], trained: list[bool]) -> Row | str:
    return Row(ids, trained) if any(trained) else UNTRAINED


def pack(lengths: Int[np.ndarray, " N"], capacity: int) -> list[list[int]]:
    """The numbers of the rows of each bin, see `learner.bins.assign`."""
    numbers = np.asarray(binning.assign(jnp.asarray(lengths, jnp.int32), capacity).bin)
    order = np.argsort(numbers, kind="stable")
    return [part.tolist() for part in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)]


def examples(rows: TokenRows, bins: Iterable[Sequence[int]], size: int, width: int, *, packed: bool) -> Examples:
    """The rows of each bin as arrays of N = number of bins; an empty bin is a row of zeros without trained tokens.

    Raises:
        ValueError: a bin has more than `size` tokens or `width` trained ones.
    """
    bins = list(bins)
    sizes = np.array([len(of_bin) for of_bin in bins], np.int64)
    chosen = np.array([row for of_bin in bins for row in of_bin], np.int64)
    bin_of, lengths = np.repeat(np.arange(len(bins)), sizes), rows.lengths[chosen]
    number = np.arange(len(chosen)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within the bin
    before = np.cumsum(lengths) - lengths
    place = before - before[np.arange(len(chosen)) - number] if len(chosen) else before
    inside = np.arange(lengths.sum()) - np.repeat(before, lengths)
    at = np.repeat(bin_of, lengths), np.repeat(place, lengths) + inside
    source = np.repeat(rows.starts[chosen], lengths) + inside
    counts = np.bincount(at[0][rows.trained[source]], minlength=len(bins))
    if at[1].max(initial=-1) >= size or counts.max(initial=0) > width:
        raise BadValue.of("bins", len(bins), f"of which one has more than {size} tokens, or {width} trained ones")
    tokens, segment, trained = (np.zeros((len(bins), size), kind) for kind in (np.int32, np.int32, bool))
    tokens[at], segment[at], trained[at] = rows.tokens[source], np.repeat(number + 1, lengths), rows.trained[source]
    of_bin, column = np.nonzero(trained)
    index = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts, counts)
    position, mask = np.ones((len(bins), width), np.int32), np.zeros((len(bins), width), bool)
    position[of_bin, index], mask[of_bin, index] = column, True
    arrays: Any = tokens, position, mask, segment if packed else None
    return Examples(*arrays)
