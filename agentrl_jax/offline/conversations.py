"""Conversations and preference pairs: what a model is trained on before it has tokens.

Formats of files are those of `read`. Two sets with the same conversations in the same order have the same digest, in
whatever format they are stored.
"""

import bisect
import dataclasses
import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

import numpy as np

ROLES = ("system", "user", "assistant")

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Message:
    """A message of a conversation."""

    role: str
    """One of `ROLES`."""
    content: str
    loss: bool = True
    """Whether a reply (a message of the assistant) is trained on; always False of other messages."""

    def __post_init__(self) -> None:
        if self.role != "assistant":
            object.__setattr__(self, "loss", False)


@dataclasses.dataclass(frozen=True)
class Conversation:
    """Messages: a system message or none, then the user and the assistant in turns, with at least one reply.

    A last message of the user, such as the observation after the last action, is kept, and trains nothing.
    """

    messages: tuple[Message, ...]
    task: str = ""
    item: str = ""
    """The level or question, as its source names it."""
    reward: float | None = None
    """Rounded to float32, which is what TFDS stores, and written with as few digits as that needs: 0.1 stays 0.1."""
    success: bool | None = None
    source: str = dataclasses.field(default="", compare=False)
    """Where it was read, for messages of errors: `file:line`."""

    def __post_init__(self) -> None:
        if self.reward is not None:
            object.__setattr__(self, "reward", float(str(np.float32(self.reward))))

    @property
    def start(self) -> tuple[str, str]:
        """The text of the system message (empty without one), and the first observation.

        That is the first message of the user. AgentGym's conversations start with the manual of the task, which a fixed
        reply acknowledges: without a system message, and where the first reply is not trained on, it is the second
        message of the user.
        """
        system = self.messages[0].content if self.messages[0].role == "system" else ""
        asked = [message.content for message in self.messages if message.role == "user"]
        acknowledged = self.messages[0].role == "user" and len(asked) > 1 and not self.messages[1].loss
        return system, asked[1 if acknowledged else 0]

    def content(self) -> str:
        """32 hexadecimal digits that tell levels apart: of the SHA-256 of `start`, as JSON."""
        return hashlib.sha256(_canonical(self.start)).hexdigest()[:32]

    def digest(self) -> bytes:
        """The SHA-256 of everything but the source, 32 bytes."""
        return _sha256(_plain(self.messages), self.task, self.item, self.reward, self.success)


@dataclasses.dataclass(frozen=True)
class PreferencePair:
    """Two ways on from one prompt, of which the first is preferred. Both begin with a reply."""

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    id: str = ""
    task: str = ""
    item: str = ""
    source: str = dataclasses.field(default="", compare=False)
    """As `Conversation.source`."""

    def conversation(self, side: str) -> Conversation:
        """The prompt with its `chosen` or its `rejected` messages."""
        return Conversation((*self.prompt, *getattr(self, side)), self.task, self.item, source=self.source)

    def digest(self) -> bytes:
        """As `Conversation.digest`."""
        return _sha256(*map(_plain, (self.prompt, self.chosen, self.rejected)), self.id, self.task, self.item)


Row = TypeVar("Row", Conversation, PreferencePair)


def _plain(messages: Sequence[Message]) -> list[tuple[str, str, bool]]:
    return [(message.role, message.content, message.loss) for message in messages]


def _canonical(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _sha256(*values: Any) -> bytes:
    return hashlib.sha256(_canonical(values)).digest()


@dataclasses.dataclass(frozen=True)
class _Set(Generic[Row]):
    """Rows, in the order of their files."""

    rows: Sequence[Row]
    """Read when they are asked for, where their format allows it."""
    digests: Sequence[bytes] = dataclasses.field(repr=False)
    """Of each row."""
    name: str
    """Of the files and folders that it was read from."""
    dropped: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """How many rows were left out, by reason."""

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        name: str,
        dropped: Mapping[str, int] | None = None,
        digests: Sequence[bytes] | None = None,
    ) -> Self:
        """The set of some rows; without their digests, each is read once for them."""
        found = [row.digest() for row in rows] if digests is None else digests
        return cls(rows, found, name, dict(dropped or {}))

    @classmethod
    def joined(cls, sets: Sequence[Self]) -> Self:
        """One set of all rows of some."""
        if len(sets) == 1:
            return sets[0]
        dropped: Counter[str] = Counter()
        for each in sets:
            dropped.update(each.dropped)
        digests = list(itertools.chain.from_iterable(each.digests for each in sets))
        return cls(Joined([each.rows for each in sets]), digests, ", ".join(each.name for each in sets), dict(dropped))

    @functools.cached_property
    def digest(self) -> str:
        """Of all rows in their order, 64 hexadecimal digits: another one at a resumption means other data."""
        return hashlib.sha256(b"".join(self.digests)).hexdigest()

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, indices: Sequence[int], dropped: Mapping[str, int] | None = None) -> Self:
        """The set of some of the rows; `dropped` is added to what was left out before."""
        more = Counter(self.dropped) + Counter(dropped or {})
        return type(self)(Part(self.rows, indices), [self.digests[i] for i in indices], self.name, dict(more))


class Data(_Set[Conversation]):
    """A set of conversations."""

    row_name = "conversation"

    @property
    def conversations(self) -> Sequence[Conversation]:
        """Its rows."""
        return self.rows


class Pairs(_Set[PreferencePair]):
    """A set of preference pairs."""

    row_name = "pair"

    @property
    def pairs(self) -> Sequence[PreferencePair]:
        """Its rows."""
        return self.rows


class Part(Sequence[T]):
    """Some of the rows of a sequence."""

    def __init__(self, rows: Sequence[T], indices: Sequence[int]):
        self._rows, self._indices = rows, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Part(self._rows, self._indices[index])
        return self._rows[self._indices[index]]


class Joined(Sequence[T]):
    """The rows of some sequences, one after the other."""

    def __init__(self, parts: Sequence[Sequence[T]]):
        self._parts = parts
        self._ends = list(itertools.accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Part(self, range(len(self))[index])
        place = range(len(self))[index]
        number = bisect.bisect_right(self._ends, place)
        return self._parts[number][place - self._ends[number] + len(self._parts[number])]
