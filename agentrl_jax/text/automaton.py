"""Compiles a response format to a deterministic automaton over bytes, and then over tokens. Runs on the host.

A response is `prelude answer`. The prelude ends before the first byte of the answer: with a think block it is the first
`</think>`, spaces, `<answer>` after the first `<think>`; without one, the first `<answer>`. Since the gaps match
anything, taking the first of each equals a non-greedy regular expression. The answer is split into items byte by byte.
Bytes that may begin a separator or the closing tag are kept in `pending` until this is decided, so they never become
part of an item.
"""

import dataclasses
from collections.abc import Hashable, Sequence

import numpy as np

SPACE = b" \t\n\r\v\f"
CLOSING = b"</answer>"

NO_ITEM, UNKNOWN, FIRST_ACTION = 0, 1, 2
"""Item that a byte completes: none, one that names no action, or `FIRST_ACTION + action id`."""


@dataclasses.dataclass(frozen=True)
class ByteMachine:
    """A deterministic automaton over bytes; `Q` states.

    Attributes:
        next_state: i32[Q, 256] state after a byte.
        item: i32[Q, 256] item that a byte completes.
        start: initial state.
        closed: absorbing state after the answer.
    """

    next_state: np.ndarray
    item: np.ndarray
    start: int
    closed: int


@dataclasses.dataclass(frozen=True)
class _Step:
    """One element of the prelude: a byte of `allowed`, or any number of them if `repeats`."""

    allowed: frozenset[int]
    repeats: bool = False


@dataclasses.dataclass(frozen=True)
class _Prelude:
    """State in the prelude: the elements that may come next."""

    open_steps: frozenset[int]


@dataclasses.dataclass(frozen=True)
class _Answer:
    """State inside the answer.

    Attributes:
        item: lower-case bytes of the item so far, without leading spaces, as long as they are a prefix of an action's
            name; the name itself if spaces followed it (`complete`); None if no action can match.
        complete: a whole name was followed by spaces.
        pending: bytes that begin a separator or the closing tag.
    """

    item: bytes | None = b""
    complete: bool = False
    pending: bytes = b""


_CLOSED = "closed"


def build(*, actions: tuple[bytes, ...], think: bool, forced: bool, separator: bytes) -> ByteMachine:
    """Builds the automaton of a response format; arguments as in `ResponseGrammar`, in bytes."""
    grammar = _Format(actions, separator, _prelude(think, forced))
    first: Hashable = grammar.enter_prelude({0}) if grammar.prelude else _Answer()
    numbers: dict[Hashable, int] = {first: 0}
    order: list[Hashable] = [first]
    next_rows, item_rows = [], []
    telling = grammar.telling_bytes()
    for state in order:
        alike = grammar.move(state, 0xFF)  # 0xFF is in no UTF-8 text, so in no format
        moves = [grammar.move(state, byte) if byte in telling else alike for byte in range(256)]
        for after, _ in moves:
            if after not in numbers:
                numbers[after] = len(order)
                order.append(after)
        next_rows.append([numbers[after] for after, _ in moves])
        item_rows.append([item for _, item in moves])
    return ByteMachine(np.array(next_rows, np.int32), np.array(item_rows, np.int32), 0, numbers[_CLOSED])


def _prelude(think: bool, forced: bool) -> tuple[_Step, ...]:
    anything, space = _Step(frozenset(range(256)), True), _Step(frozenset(SPACE), True)

    def literal(text: bytes) -> tuple[_Step, ...]:
        return tuple(_Step(frozenset([byte])) for byte in text)

    opened = () if forced else (anything, *literal(b"<think>" if think else b"<answer>"))
    return (*opened, anything, *literal(b"</think>"), space, *literal(b"<answer>")) if think else opened


@dataclasses.dataclass(frozen=True)
class _Format:
    actions: tuple[bytes, ...]
    separator: bytes
    prelude: tuple[_Step, ...]

    def __post_init__(self) -> None:
        lowered = [name.lower() for name in self.actions]
        object.__setattr__(self, "names", {name: i for i, name in enumerate(lowered)})
        object.__setattr__(self, "beginnings", {name[:k] for name in lowered for k in range(len(name) + 1)} | {b""})

    names: dict[bytes, int] = dataclasses.field(init=False)
    beginnings: set[bytes] = dataclasses.field(init=False)

    def telling_bytes(self) -> frozenset[int]:
        """Returns the bytes that the format mentions; all other bytes have the same effect."""
        steps = {byte for step in self.prelude if not step.repeats for byte in step.allowed}
        text = b"".join([*self.names, *(name.upper() for name in self.names), CLOSING, self.separator, SPACE])
        return frozenset(steps | set(text))

    def move(self, state: Hashable, byte: int) -> tuple[Hashable, int]:
        """Returns the state after `byte` and the item that it completes."""
        if isinstance(state, _Prelude):
            reached = set()
            for k in state.open_steps:
                if byte in self.prelude[k].allowed:
                    reached.add(k if self.prelude[k].repeats else k + 1)
            return self.enter_prelude(reached), NO_ITEM
        if isinstance(state, _Answer):
            return self.move_in_answer(state, byte)
        return state, NO_ITEM

    def enter_prelude(self, reached: set[int]) -> Hashable:
        """Returns the state for a set of elements, plus those reached by skipping elements with `repeats`."""
        opened = set()
        for k in sorted(reached):
            while k < len(self.prelude) and self.prelude[k].repeats:
                opened.add(k)
                k += 1
            opened.add(k)
        if len(self.prelude) in opened:
            return _Answer()
        # An open gap stays open, so elements before the last open gap cannot change the result.
        last_gap = max(
            (k for k in opened if self.prelude[k].repeats and len(self.prelude[k].allowed) == 256), default=0
        )
        return _Prelude(frozenset(k for k in opened if k >= last_gap))

    def move_in_answer(self, state: _Answer, byte: int) -> tuple[Hashable, int]:
        pending = state.pending + bytes([byte])
        while not (CLOSING.startswith(pending) or self.separator.startswith(pending)):
            state, pending = self.extend_item(state, pending[0]), pending[1:]
        if pending == CLOSING:
            return _CLOSED, self.finish_item(state)
        if pending == self.separator:
            return _Answer(), self.finish_item(state)
        return dataclasses.replace(state, pending=pending), NO_ITEM

    def extend_item(self, state: _Answer, byte: int) -> _Answer:
        is_space = byte in SPACE
        if state.item is None or (state.complete and is_space) or (state.item == b"" and is_space):
            return state
        longer = state.item + bytes([byte]).lower()
        if not state.complete and longer in self.beginnings:
            return _Answer(longer)
        if not state.complete and is_space and state.item.rstrip() in self.names:
            return _Answer(state.item.rstrip(), complete=True)
        return _Answer(None)

    def finish_item(self, state: _Answer) -> int:
        if state.item == b"":
            return NO_ITEM
        if state.item is None or state.item.rstrip() not in self.names:
            return UNKNOWN
        return FIRST_ACTION + self.names[state.item.rstrip()]


def compose(
    machine: ByteMachine, token_bytes: Sequence[bytes | None], block: int = 2048
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Composes the automaton over the bytes of every token.

    Tokens with the same effect in every state share a class, which keeps the tables small for large vocabularies.

    Args:
        machine: the automaton; `Q` states.
        token_bytes: bytes of each token id; None or no bytes for a token that changes nothing.
        block: tokens processed at a time; limits the memory of the build.

    Returns:
        (token_class i32[V], next_state i32[Q, C], run i32[Q, C], runs i32[F, E]): row `run[q, c]` of `runs` lists the
        items that a token of class `c` completes from state `q`, padded with `NO_ITEM`. Class 0 changes nothing.
    """
    states = machine.next_state.shape[0]
    next_flat, item_flat = machine.next_state.ravel(), machine.item.ravel().astype(np.int16)
    runs: dict[tuple[int, ...], int] = {(): 0}
    identity = np.stack([np.arange(states, dtype=np.int32), np.zeros(states, np.int32)])
    classes = {identity.tobytes(): 0}
    columns = [identity]
    token_class = np.zeros(len(token_bytes), np.int32)
    ids = sorted((i for i, data in enumerate(token_bytes) if data), key=lambda i: len(token_bytes[i] or b""))
    for begin in range(0, len(ids), block):
        chunk = ids[begin : begin + block]
        state = np.tile(np.arange(states, dtype=np.int32), (len(chunk), 1))
        run = np.zeros_like(state)
        lengths = np.array([len(token_bytes[i] or b"") for i in chunk])
        data = np.zeros((len(chunk), lengths.max()), np.int32)
        for row, i in enumerate(chunk):
            data[row, : lengths[row]] = np.frombuffer(token_bytes[i] or b"", np.uint8)
        for position in range(lengths.max()):
            first = int(np.searchsorted(lengths, position, side="right"))  # lengths are sorted: rows with more bytes
            index = state[first:] * 256 + data[first:, position, None]
            state[first:] = next_flat[index]
            item = item_flat[index]
            where = np.nonzero(item)
            if where[0].size:
                run[first:][where] = _append(runs, run[first:][where], item[where])
        for row, i in enumerate(chunk):
            column = np.stack([state[row], run[row]])
            token_class[i] = classes.setdefault(column.tobytes(), len(classes))
            if token_class[i] == len(columns):
                columns.append(column)
    table = np.stack(columns, axis=-1)
    width = max(1, *map(len, runs))
    padded = np.array([[*run, *[NO_ITEM] * (width - len(run))] for run in runs], np.int32)
    return token_class, np.ascontiguousarray(table[0]), np.ascontiguousarray(table[1]), padded


def _append(runs: dict[tuple[int, ...], int], run: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Appends an item to each run and returns the ids of the results; new runs are added to `runs`."""
    pairs, inverse = np.unique(run.astype(np.int64) << 16 | item, return_inverse=True)
    known = list(runs)
    longer = [runs.setdefault((*known[pair >> 16], pair & 0xFFFF), len(runs)) for pair in pairs.tolist()]
    return np.array(longer, np.int32)[inverse.ravel()]
